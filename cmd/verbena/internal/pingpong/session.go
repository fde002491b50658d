package pingpong

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

const (
	// filler is the content of a message but for the first byte of each page,
	// which is 0. With a shared receive queue all is 0.
	filler = 0x7b
	// grhLen is the room for the GRH before a received datagram.
	grhLen = 40
	// qkey is that of rdma-core's program.
	qkey ib.QKey = 0x11111111
	// hopLimit is enough for any path.
	hopLimit = 64
)

// session holds the objects of one game.
type session struct {
	cfg  *Config
	dev  *verbs.Context
	ch   *verbs.CompChannel
	pd   *verbs.PD
	cq   *verbs.CQ
	srq  *verbs.SRQ
	mr   *verbs.MR
	buf  []byte
	head int // bytes before the message in buf
	qps  []*verbs.QP
	ahs  []*verbs.AH
	mine []dest
	peer []dest

	flags ib.SendFlags
	recvs []verbs.RecvWR
	undo  []func() error
}

// open makes everything up to queue pairs in state INIT.
func open(ctx context.Context, c *Config) (s *session, err error) {
	s = &session{cfg: c, flags: ib.SendSignaled}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.dev, err = cli.Open(ctx, c.Dev, c.Addr); err != nil {
		return s, err
	}
	s.undo = append(s.undo, s.dev.Close)
	port, err := s.dev.QueryPort(uint8(c.IBPort))
	if err != nil {
		return s, err
	}
	if err = c.checkPort(s.dev, &port); err != nil {
		return s, err
	}
	if c.Events {
		if s.ch, err = s.dev.CreateCompChannel(); err != nil {
			return s, err
		}
		s.undo = append(s.undo, s.ch.Destroy)
	}
	if s.pd, err = s.dev.AllocPD(); err != nil {
		return s, err
	}
	s.undo = append(s.undo, s.pd.Dealloc)
	if c.Kind == UD {
		s.head = grhLen
	}
	s.buf = make([]byte, s.head+c.Size)
	s.fill()
	if s.mr, err = s.pd.RegMR(s.buf, ib.AccessLocalWrite); err != nil {
		return s, err
	}
	s.undo = append(s.undo, s.mr.Dereg)
	if s.cq, err = s.dev.CreateCQ(c.RxDepth+c.NumQP, s.ch, nil); err != nil {
		return s, err
	}
	s.undo = append(s.undo, s.cq.Destroy)
	if c.Kind == SRQ {
		if s.srq, err = s.pd.CreateSRQ(&ib.SRQAttr{MaxWR: uint32(c.RxDepth), MaxSGE: 1}, nil); err != nil {
			return s, err
		}
		s.undo = append(s.undo, s.srq.Destroy)
	}
	for range c.NumQP {
		if err = s.createQP(); err != nil {
			return s, err
		}
	}
	return s, s.describe(&port)
}

func (s *session) createQP() error {
	c := s.cfg
	attr := verbs.QPInitAttr{
		SendCQ: s.cq, RecvCQ: s.cq, SRQ: s.srq, Type: ib.RC,
		Cap: ib.QPCap{MaxSendWR: 1, MaxRecvWR: uint32(c.RxDepth), MaxSendSGE: 1, MaxRecvSGE: 1},
	}
	initial := ib.QPAttr{QPState: ib.QPStateInit, PortNum: uint8(c.IBPort)}
	mask := ib.QPAttrState | ib.QPAttrPKeyIndex | ib.QPAttrPort
	switch c.Kind {
	case UC:
		attr.Type = ib.UC
	case UD:
		attr.Type = ib.UD
		initial.QKey = qkey
		mask |= ib.QPAttrQKey
	}
	if c.Kind != UD {
		mask |= ib.QPAttrAccessFlags
	}
	qp, err := s.pd.CreateQP(&attr)
	if err != nil {
		return err
	}
	s.undo = append(s.undo, qp.Destroy)
	s.qps = append(s.qps, qp)
	if int(attr.Cap.MaxInlineData) >= c.Size {
		s.flags |= ib.SendInline
	}
	return qp.Modify(&initial, mask)
}

// describe fills in what the peer shall know.
func (s *session) describe(port *ib.PortAttr) error {
	gid, err := s.dev.QueryGID(uint8(s.cfg.IBPort), s.cfg.GIDIndex)
	if err != nil {
		if errors.Is(err, ib.ErrNoData) || errors.Is(err, syscall.EINVAL) {
			err = cli.Hint(err, "See the GIDs of the device: verbena devices -v -d %s", s.dev.Device().Name())
		}
		return err
	}
	for _, qp := range s.qps {
		s.mine = append(s.mine, dest{LID: port.LID, QPN: qp.Num(), PSN: rand.Uint32() & 0xFFFFFF, GID: gid})
	}
	return nil
}

// connect moves the queue pairs to RTS.
func (s *session) connect(peer []dest) error {
	s.peer = peer
	for i, qp := range s.qps {
		av := ib.AHAttr{
			IsGlobal: true, DGID: peer[i].GID, SGIDIndex: uint8(s.cfg.GIDIndex), HopLimit: hopLimit,
			DLID: peer[i].LID, SL: uint8(s.cfg.SL), PortNum: uint8(s.cfg.IBPort),
		}
		if err := s.connectQP(qp, &av, &s.mine[i], &peer[i]); err != nil {
			return fmt.Errorf("couldn't connect to the remote queue pair: %w", err)
		}
	}
	return nil
}

func (s *session) connectQP(qp *verbs.QP, av *ib.AHAttr, mine, peer *dest) error {
	rtr := ib.QPAttr{QPState: ib.QPStateRTR}
	rts := ib.QPAttr{QPState: ib.QPStateRTS, SQPSN: mine.PSN}
	rtrMask, rtsMask := ib.QPAttrState, ib.QPAttrState|ib.QPAttrSQPSN
	if s.cfg.Kind != UD {
		mtu, err := ib.MTUFromBytes(s.cfg.MTU)
		if err != nil {
			return err
		}
		rtr.AHAttr, rtr.PathMTU, rtr.DestQPN, rtr.RQPSN = *av, mtu, peer.QPN, peer.PSN
		rtrMask |= ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
	}
	if s.cfg.Kind == RC || s.cfg.Kind == SRQ {
		rtr.MaxDestRDAtomic, rtr.MinRNRTimer = 1, 12
		rtrMask |= ib.QPAttrMaxDestRDAtomic | ib.QPAttrMinRNRTimer
		rts.Timeout, rts.RetryCnt, rts.RNRRetry, rts.MaxRDAtomic = 14, 7, 7, 1
		rtsMask |= ib.QPAttrTimeout | ib.QPAttrRetryCnt | ib.QPAttrRNRRetry | ib.QPAttrMaxRDAtomic
	}
	if err := qp.Modify(&rtr, rtrMask); err != nil {
		return err
	}
	if err := qp.Modify(&rts, rtsMask); err != nil {
		return err
	}
	if s.cfg.Kind != UD {
		return nil
	}
	ah, err := s.pd.CreateAH(av)
	if err != nil {
		return err
	}
	s.undo = append(s.undo, ah.Destroy)
	s.ahs = append(s.ahs, ah)
	return nil
}

// fill sets the buffer. The client's is the message. The server's, which sends
// only what it received, differs from it in every byte, so that a check of the
// content finds what did not arrive.
func (s *session) fill() {
	b := s.buf[s.head:]
	for i := range b {
		b[i] = s.content(i)
		if s.cfg.Host == "" {
			b[i] = ^b[i]
		}
	}
}

// content is the byte of the message at offset i. Without a check rdma-core's
// programs send no zeros at the pages' start, but then nobody looks.
func (s *session) content(i int) byte {
	if s.cfg.Kind == SRQ || s.cfg.Check && i%os.Getpagesize() == 0 {
		return 0
	}
	return filler
}

// badPages lists the pages of the message whose content is not what was sent.
func (s *session) badPages() (bad []int) {
	b := s.buf[s.head:]
	page := os.Getpagesize()
	want := make([]byte, page)
	for at := 0; at < len(b); at += page {
		got := b[at:min(at+page, len(b))]
		for i := range got {
			want[i] = s.content(at + i)
		}
		if !bytes.Equal(got, want[:len(got)]) {
			bad = append(bad, at/page)
		}
	}
	return bad
}

// postRecvs posts n receives.
func (s *session) postRecvs(n int) error {
	if len(s.recvs) < n {
		wr := verbs.RecvWR{WRID: recvWRID, SGList: []verbs.SGE{s.mr.SGE(0, len(s.buf))}}
		for len(s.recvs) < n {
			s.recvs = append(s.recvs, wr)
		}
	}
	if s.srq != nil {
		return s.srq.PostRecv(s.recvs[:n])
	}
	return s.qps[0].PostRecv(s.recvs[:n])
}

// postSend sends the message on one queue pair.
func (s *session) postSend(i int) error {
	wr := verbs.SendWR{
		WRID: sendWRID, Opcode: ib.WRSend, Flags: s.flags, SGList: []verbs.SGE{s.mr.SGE(s.head, s.cfg.Size)},
	}
	if s.cfg.Kind == UD {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = s.ahs[i], s.peer[i].QPN, qkey
	}
	return s.qps[i].PostSendOne(&wr)
}

// close gives everything back, last things first.
func (s *session) close() error {
	var errs []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		errs = append(errs, s.undo[i]())
	}
	s.undo = nil
	return errors.Join(errs...)
}
