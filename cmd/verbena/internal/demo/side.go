package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/trace"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// Layout of the small region.
const (
	messageAt   = 0 // SEND: source or destination
	messageMax  = 4096
	datagramAt  = messageAt + messageMax // GRH and datagram
	grhLen      = 40
	datagramLen = 1024
	wordAt      = 8192 // target of atomics
	resultAt    = 8200 // what atomics return
	pingAt      = 8208 // target of pings
	smallLen    = 8320
)

const (
	chunk   = 1 << 20 // bytes of one WRITE or READ
	flight  = 16      // of them at a time
	pings   = 64      // receives posted for pings
	sqDepth = 64
	rqDepth = 128

	qkey ib.QKey = 0x11111111

	// patience is how long a side waits for a completion.
	patience = 15 * time.Second
	// spin is how many empty polls happen before a side sleeps.
	spin = 5000
)

// WRIDs of receives; sends count from 0.
const (
	recvMessage  = 1<<63 + iota // the message by SEND
	recvDatagram                // the datagram
	recvPing                    // a ping
)

// errSilence tells that a completion did not come.
var errSilence = fmt.Errorf("nothing completed for %v", patience)

// side is one process's end.
type side struct {
	addr   netip.Addr
	dev    *verbs.Context
	pd     *verbs.PD
	cq     *verbs.CQ
	rc, ud *verbs.QP
	window *verbs.MR
	small  *verbs.MR
	me     contact
	wcs    [32]verbs.WC
	undo   []func() error
}

// open makes a side on the address, with a window of size bytes.
func open(ctx context.Context, addr netip.Addr, size int, rec trace.Recorder) (s *side, err error) {
	s = &side{addr: addr}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := s.openDevice(ctx, rec); err != nil {
		return s, err
	}
	port, err := s.dev.QueryPort(1)
	if err != nil {
		return s, err
	}
	if s.pd, err = s.dev.AllocPD(); err != nil {
		return s, err
	}
	s.undo = append(s.undo, s.pd.Dealloc)
	const access = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic
	for _, r := range []struct {
		mr   **verbs.MR
		size int
	}{{&s.window, size}, {&s.small, smallLen}} {
		if *r.mr, err = s.pd.RegMR(make([]byte, r.size), access); err != nil {
			return s, err
		}
		s.undo = append(s.undo, (*r.mr).Dereg)
	}
	if s.cq, err = s.dev.CreateCQ(2*(sqDepth+rqDepth), nil, nil); err != nil {
		return s, err
	}
	s.undo = append(s.undo, s.cq.Destroy)
	for _, q := range []struct {
		qp  **verbs.QP
		typ ib.QPType
	}{{&s.rc, ib.RC}, {&s.ud, ib.UD}} {
		*q.qp, err = s.pd.CreateQP(&verbs.QPInitAttr{
			SendCQ: s.cq, RecvCQ: s.cq, Type: q.typ,
			Cap: ib.QPCap{MaxSendWR: sqDepth, MaxRecvWR: rqDepth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64},
		})
		if err != nil {
			return s, err
		}
		s.undo = append(s.undo, (*q.qp).Destroy)
	}
	s.me = contact{
		Device: s.dev.Device().Name(),
		GID:    ib.GIDFromAddr(addr), RC: s.rc.Num(), UD: s.ud.Num(), PSN: rand.Uint32() & 0xFFFFFF, MTU: port.ActiveMTU,
		WindowAddr: s.window.Addr(), WindowKey: s.window.RKey(), SmallAddr: s.small.Addr(), SmallKey: s.small.RKey(),
	}
	return s, nil
}

// openDevice opens the device whose only GID is the address.
func (s *side) openDevice(ctx context.Context, rec trace.Recorder) error {
	netdev, err := cli.NetDev(s.addr)
	if err != nil {
		return err
	}
	list, err := verbs.Devices(ctx, soft.NewProvider(soft.WithAddrs(netdev, s.addr), soft.WithTrace(rec),
		soft.WithCapture(soft.Capture{Path: os.Getenv(rdma.CaptureEnv)})))
	if err != nil {
		return err
	}
	for _, d := range list {
		if d.NetDev() == netdev {
			if s.dev, err = d.Open(ctx); err != nil {
				return err
			}
			s.undo = append(s.undo, s.dev.Close)
			return nil
		}
	}
	return fmt.Errorf("there is no device of the interface %s: %w", netdev, syscall.ENODEV)
}

// connect moves the queue pairs to RTS.
func (s *side) connect(peer *contact) error {
	if err := s.connectRC(peer); err != nil {
		return fmt.Errorf("connect from %s to %s: %w", s.addr, peer.GID.Addr(), err)
	}
	q := s.ud
	if err := q.Modify(&ib.QPAttr{QPState: ib.QPStateInit, PortNum: 1, QKey: qkey},
		ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrQKey); err != nil {
		return err
	}
	if err := q.Modify(&ib.QPAttr{QPState: ib.QPStateRTR}, ib.QPAttrState); err != nil {
		return err
	}
	return q.Modify(&ib.QPAttr{QPState: ib.QPStateRTS}, ib.QPAttrState|ib.QPAttrSQPSN)
}

func (s *side) connectRC(peer *contact) error {
	q := s.rc
	if err := q.Modify(&ib.QPAttr{
		QPState: ib.QPStateInit, PortNum: 1,
		QPAccessFlags: ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic,
	}, ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags); err != nil {
		return err
	}
	if err := q.Modify(&ib.QPAttr{
		QPState: ib.QPStateRTR, PathMTU: min(s.me.MTU, peer.MTU), DestQPN: peer.RC, RQPSN: peer.PSN, MaxDestRDAtomic: 16, MinRNRTimer: 12,
		AHAttr: ib.AHAttr{IsGlobal: true, DGID: peer.GID, HopLimit: 64, PortNum: 1},
	}, ib.QPAttrState|ib.QPAttrAV|ib.QPAttrPathMTU|ib.QPAttrDestQPN|ib.QPAttrRQPSN|ib.QPAttrMaxDestRDAtomic|ib.QPAttrMinRNRTimer); err != nil {
		return err
	}
	return q.Modify(&ib.QPAttr{
		QPState: ib.QPStateRTS, SQPSN: s.me.PSN, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 16,
	}, ib.QPAttrState|ib.QPAttrSQPSN|ib.QPAttrTimeout|ib.QPAttrRetryCnt|ib.QPAttrRNRRetry|ib.QPAttrMaxRDAtomic)
}

// wait returns completions, at least one, all of them successes. The slice is
// valid until the next call.
func (s *side) wait(ctx context.Context) ([]verbs.WC, error) {
	for empty := 0; ; empty++ {
		n, err := s.cq.Poll(s.wcs[:])
		if err != nil {
			return nil, err
		}
		for i := range s.wcs[:n] {
			if err := s.wcs[i].Err(); err != nil {
				return nil, ctxErr(ctx, err)
			}
		}
		if n > 0 {
			return s.wcs[:n], nil
		}
		if empty < spin {
			continue
		}
		limit, cancel := context.WithTimeoutCause(ctx, patience, errSilence)
		err = s.cq.Wait(limit)
		if err != nil && limit.Err() != nil {
			err = context.Cause(limit)
		}
		cancel()
		if err != nil {
			return nil, err
		}
	}
}

// one waits for the completion of the only work that is under way.
func (s *side) one(ctx context.Context) (verbs.WC, error) {
	wcs, err := s.wait(ctx)
	if err != nil {
		return verbs.WC{}, err
	}
	if len(wcs) != 1 {
		return verbs.WC{}, fmt.Errorf("%d completions for one work request", len(wcs))
	}
	return wcs[0], nil
}

// bytes is a part of the small region.
func (s *side) bytes(at, n int) []byte { return s.small.Bytes()[at : at+n : at+n] }

// trouble names what the device counted that is not plain traffic; "" if
// nothing.
func (s *side) trouble() string {
	d, ok := s.dev.Driver().(*soft.Device)
	if !ok {
		return ""
	}
	var list []string
	st := d.Stats()
	st.Each(func(name string, v uint64) {
		if v > 0 && name != "sent_pkts" && name != "rcvd_pkts" && !strings.HasPrefix(name, "rdma_") {
			list = append(list, fmt.Sprintf("%s %d", name, v))
		}
	})
	return strings.Join(list, ", ")
}

// close gives everything back, last things first.
func (s *side) close() error {
	var errs []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		errs = append(errs, s.undo[i]())
	}
	s.undo = nil
	return errors.Join(errs...)
}

// ctxErr is ctx's error if it is done, which then is the reason.
func ctxErr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
