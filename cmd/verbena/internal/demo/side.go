package demo

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/verbena-rdma/verbena/rdmacm"
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

	cm       *rdmacm.Manager
	listener *rdmacm.ID // of the second process
	mtu      ib.MTU     // of the path, in the first process
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
	if s.ud, err = s.pd.CreateQP(s.attr(ib.UD)); err != nil {
		return s, err
	}
	s.undo = append(s.undo, s.ud.Destroy)
	if err := s.startUD(); err != nil {
		return s, err
	}
	s.cm = rdmacm.NewManager(rdmacm.WithContexts(s.dev))
	s.undo = append(s.undo, s.cm.Close)
	s.me = contact{
		Device: s.dev.Device().Name(), UD: s.ud.Num(),
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

// startUD moves the queue pair for datagrams to RTS.
func (s *side) startUD() error {
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
