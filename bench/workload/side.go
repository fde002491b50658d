package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/udp"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// side is one process: a device, memory, and connected queue pairs.
type side struct {
	job
	dev  *verbs.Context
	pd   *verbs.PD
	scq  *verbs.CQ
	rcq  *verbs.CQ
	mr   *verbs.MR
	qps  []*verbs.QP
	peer peerInfo
	ctx  context.Context // canceled when the parent says stop

	cancel context.CancelFunc
	out    *json.Encoder
}

// slot is the memory of one side: what it sends, then what it receives.
func (s *side) slot() int { return max(s.Size, 64) }

// open opens the device on the side's address and makes memory and completion queues.
func (s *side) open() error {
	s.ctx, s.cancel = context.WithCancel(context.Background())
	addr, err := netip.ParseAddr(s.Addr)
	if err != nil {
		return err
	}
	d, err := s.openDevice(addr)
	if err != nil {
		return err
	}
	s.dev = verbs.NewContext(d)
	if s.pd, err = s.dev.AllocPD(); err != nil {
		return err
	}
	buf := make([]byte, 2*s.slot())
	for i := range buf {
		buf[i] = byte(i)
	}
	clear(buf[s.slot():])
	if s.mr, err = s.pd.RegMR(buf, ib.AccessLocalWrite|ib.AccessRemoteWrite|ib.AccessRemoteRead); err != nil {
		return err
	}
	if s.scq, err = s.dev.CreateCQ(depth*min(s.QPs, 1000)+1, nil, nil); err != nil {
		return err
	}
	s.rcq, err = s.dev.CreateCQ(2*depth*min(s.QPs, 1000)+1, nil, nil)
	return err
}

func (s *side) openDevice(addr netip.Addr) (driver.Device, error) {
	if s.Share != "" {
		return s.openShared(addr)
	}
	p, err := udp.Open(udp.Config{RecvBuf: s.RecvBuf})
	if err != nil {
		return nil, err
	}
	cfg := soft.Config{Name: "soft_lo", NetDev: "lo", Addrs: []netip.Addr{addr}, Port: p}
	if s.Sleep && !s.Spin {
		cfg.WaitSpin = -1
	}
	d, err := soft.NewDevice(cfg)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return d, nil
}

// newSide opens the device, creates everything and connects with the peer that the parent introduces.
func newSide(args json.RawMessage, in *json.Decoder, out *json.Encoder, recvDepth int) (*side, error) {
	s := &side{out: out}
	if err := json.Unmarshal(args, &s.job); err != nil {
		return nil, err
	}
	if err := s.open(); err != nil {
		return nil, err
	}
	info := peerInfo{Addr: s.mr.Addr() + uint64(s.slot()), RKey: uint32(s.mr.RKey())}
	for range s.QPs {
		qp, err := s.pd.CreateQP(&verbs.QPInitAttr{
			SendCQ: s.scq, RecvCQ: s.rcq, Type: ib.RC,
			Cap: ib.QPCap{MaxSendWR: depth, MaxRecvWR: uint32(max(recvDepth, 1)), MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64},
		})
		if err != nil {
			return nil, err
		}
		s.qps = append(s.qps, qp)
		info.QPNs = append(info.QPNs, uint32(qp.Num()))
	}
	if err := out.Encode(info); err != nil {
		return nil, err
	}
	if err := in.Decode(&s.peer); err != nil {
		return nil, fmt.Errorf("peer: %w", err)
	}
	for i, qp := range s.qps {
		if err := s.connect(qp, ib.QPN(s.peer.QPNs[i])); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// start says that this side is ready and waits for the word to go.
func (s *side) start(in *json.Decoder) error {
	if err := s.out.Encode("ready"); err != nil {
		return err
	}
	var word string
	return in.Decode(&word)
}

func (s *side) connect(qp *verbs.QP, other ib.QPN) error {
	dst, err := netip.ParseAddr(s.Other)
	if err != nil {
		return err
	}
	return errors.Join(
		qp.Modify(&ib.QPAttr{
			QPState: ib.QPStateInit, PortNum: 1, QPAccessFlags: ib.AccessRemoteWrite | ib.AccessRemoteRead,
		}, ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags),
		qp.Modify(&ib.QPAttr{
			QPState: ib.QPStateRTR, PathMTU: ib.MTU4096, DestQPN: other, MaxDestRDAtomic: 16, MinRNRTimer: 1,
			AHAttr: ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(dst), PortNum: 1},
		}, ib.QPAttrState|ib.QPAttrAV|ib.QPAttrPathMTU|ib.QPAttrDestQPN|ib.QPAttrRQPSN|ib.QPAttrMaxDestRDAtomic|ib.QPAttrMinRNRTimer),
		qp.Modify(&ib.QPAttr{QPState: ib.QPStateRTS, Timeout: 14, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 16},
			ib.QPAttrState|ib.QPAttrSQPSN|ib.QPAttrTimeout|ib.QPAttrRetryCnt|ib.QPAttrRNRRetry|ib.QPAttrMaxRDAtomic),
	)
}

// stopped becomes true when the parent says so, or is gone; it ends a wait too.
func (s *side) stopped(in *json.Decoder) *atomic.Bool {
	stop := new(atomic.Bool)
	go func() {
		var word string
		_ = in.Decode(&word)
		stop.Store(true)
		s.cancel()
	}()
	return stop
}

// take polls a queue, or waits for it.
func (s *side) take(cq *verbs.CQ, wcs []verbs.WC) (int, error) {
	if s.Sleep {
		if err := cq.Wait(s.ctx); err != nil && !errors.Is(err, context.Canceled) {
			return 0, err
		}
	}
	n, err := cq.Poll(wcs)
	if err != nil {
		return 0, err
	}
	for i := range wcs[:n] {
		if err := wcs[i].Err(); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// usage marks a moment.
type usage struct {
	at     time.Time
	cpu    time.Duration
	allocs uint64
}

func since(u usage, messages uint64) result {
	now := snapshot()
	return result{
		Messages: messages, Elapsed: now.at.Sub(u.at), CPU: now.cpu - u.cpu,
		Allocs: float64(now.allocs-u.allocs) / float64(max(messages, 1)),
	}
}
