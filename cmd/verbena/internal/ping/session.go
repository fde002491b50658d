package ping

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cmapp"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// sqDepth is the depth of the send queue, as rping's.
const sqDepth = 16

// errDisconnected ends a session: the peer, or this side, has disconnected.
var errDisconnected = errors.New("disconnected")

// session is one connection, of either side.
type session struct {
	*program
	id    *rdmacm.ID
	ctx   context.Context // done when the connection is over; Cause tells why
	end   context.CancelCauseFunc
	steps chan rdmacm.EventType // events that somebody waits for
	over  chan struct{}         // holds a token after EventDisconnected

	pd *verbs.PD
	cq *verbs.CQ
	qp *verbs.QP

	send, recv []byte // messages
	data       []byte // the server READs to it and WRITEs from it; the client's sink
	start      []byte // the client's source
	sendMR     *verbs.MR
	recvMR     *verbs.MR
	dataMR     *verbs.MR
	startMR    *verbs.MR
}

func (p *program) newSession(ctx context.Context, id *rdmacm.ID) *session {
	s := &session{program: p, id: id, steps: make(chan rdmacm.EventType, 4), over: make(chan struct{}, 1)}
	s.ctx, s.end = context.WithCancelCause(ctx)
	return s
}

// setup makes queue pair and buffers and posts the first receive.
func (s *session) setup() error {
	if err := s.createQP(); err != nil {
		return err
	}
	s.debugf("rping_setup_buffers called on cb %p\n", s)
	const remote = ib.AccessLocalWrite | ib.AccessRemoteRead | ib.AccessRemoteWrite
	buffers := []struct {
		buf    *[]byte
		mr     **verbs.MR
		size   int
		access ib.Access
	}{
		{&s.recv, &s.recvMR, infoLen, ib.AccessLocalWrite},
		{&s.send, &s.sendMR, infoLen, 0},
		{&s.data, &s.dataMR, s.cfg.Size, remote},
		{&s.start, &s.startMR, s.cfg.Size, remote},
	}
	if s.cfg.Server {
		buffers = buffers[:3]
	}
	for _, b := range buffers {
		*b.buf = make([]byte, b.size)
		var err error
		if *b.mr, err = s.pd.RegMR(*b.buf, b.access); err != nil {
			return err
		}
	}
	s.debugf("allocated & registered buffers...\n")
	return s.postRecv()
}

func (s *session) createQP() error {
	dev := s.id.Verbs()
	var err error
	if s.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	s.debugf("created pd %p\n", s.pd)
	if s.cq, err = dev.CreateCQ(2*sqDepth, nil, nil); err != nil {
		return err
	}
	s.debugf("created cq %p\n", s.cq)
	attr := verbs.QPInitAttr{
		SendCQ: s.cq, RecvCQ: s.cq, Type: ib.RC,
		Cap: ib.QPCap{MaxSendWR: sqDepth, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1},
	}
	if s.cfg.OwnQP {
		if s.qp, err = s.pd.CreateQP(&attr); err != nil {
			return err
		}
		initial := ib.QPAttr{QPState: ib.QPStateInit, PortNum: s.id.PortNum()}
		err = s.qp.Modify(&initial, ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrAccessFlags)
	} else if err = s.id.CreateQP(s.pd, &attr); err == nil {
		s.qp = s.id.QP()
	}
	if err != nil {
		return err
	}
	s.debugf("created qp %p\n", s.qp)
	return nil
}

// connParam are the parameters of Connect, and of Accept with an own queue pair.
func (s *session) connParam() *rdmacm.ConnParam {
	p := &rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7}
	if s.cfg.OwnQP {
		p.QPNum = s.qp.Num()
	}
	return p
}

// modify moves an own queue pair to RTS.
func (s *session) modify() error {
	for _, state := range []ib.QPState{ib.QPStateInit, ib.QPStateRTR, ib.QPStateRTS} {
		attr := ib.QPAttr{QPState: state}
		mask, err := s.id.InitQPAttr(&attr)
		if err != nil {
			return err
		}
		if err := s.qp.Modify(&attr, mask); err != nil {
			return err
		}
	}
	return nil
}

// await waits for one of the events.
func (s *session) await(want rdmacm.EventType) error {
	select {
	case got := <-s.steps:
		if got != want {
			return fmt.Errorf("got the event %v, want %v", got, want)
		}
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// postRecv posts the receive of the next message.
func (s *session) postRecv() error {
	return s.qp.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{s.recvMR.SGE(0, infoLen)}})
}

// tell sends a message.
func (s *session) tell(i info) error {
	i.put(s.send)
	return s.post(&verbs.SendWR{Opcode: ib.WRSend, SGList: []verbs.SGE{s.sendMR.SGE(0, infoLen)}})
}

// move READs or WRITEs n bytes of the peer's buffer.
func (s *session) move(op ib.WROpcode, peer info, n int) error {
	return s.post(&verbs.SendWR{
		Opcode: op, SGList: []verbs.SGE{s.dataMR.SGE(0, n)}, RemoteAddr: peer.Addr, RKey: peer.RKey,
	})
}

func (s *session) post(wr *verbs.SendWR) error {
	wr.Flags = ib.SendSignaled
	if err := s.qp.PostSendOne(wr); err != nil {
		return fmt.Errorf("post send: %w", err)
	}
	return nil
}

// wait waits for a completion that is not the end of a SEND. It is of the kind that is
// wanted, or the peer does not play by the rules. Of a receive it returns the message, and
// the next receive is posted.
func (s *session) wait(want ib.WCOpcode) (info, error) {
	for {
		wc, err := s.next()
		if err != nil {
			return info{}, err
		}
		if wc.Opcode == ib.WCSend {
			s.debugf("send completion\n")
			continue
		}
		var got info
		if wc.Opcode == ib.WCRecv {
			s.debugf("recv completion\n")
			if got, err = parse(s.recv[:min(int(wc.ByteLen), infoLen)]); err == nil {
				err = s.postRecv()
			}
		}
		if err == nil && wc.Opcode != want {
			err = fmt.Errorf("%v completed, want %v: the peer is not rping, or another version of it", wc.Opcode, want)
		}
		return got, err
	}
}

// next is the next completion. Those that came before the end of the connection are not
// lost to it.
func (s *session) next() (verbs.WC, error) {
	var wcs [1]verbs.WC
	for over := false; ; {
		switch n, err := s.cq.Poll(wcs[:]); {
		case err != nil:
			return wcs[0], err
		case n == 1:
			return wcs[0], s.explain(&wcs[0])
		case over:
			return wcs[0], context.Cause(s.ctx)
		}
		if err := s.cq.Wait(s.ctx); err != nil {
			if s.ctx.Err() == nil {
				return wcs[0], err
			}
			over = true
		}
	}
}

// explain is the error of a completion. Work is flushed when the connection is over.
func (s *session) explain(wc *verbs.WC) error {
	err := wc.Err()
	switch wc.Status {
	case ib.WCSuccess:
		return nil
	case ib.WCWRFlushErr:
		select {
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		default:
		}
	case ib.WCRetryExcErr:
		return cli.Hint(err, "The peer does not answer: it ended, or UDP port 4791 is not open both ways")
	case ib.WCRemAccessErr, ib.WCRemOpErr, ib.WCLocProtErr, ib.WCLocLenErr:
		return cli.Hint(err, "The data did not fit: give the same -S on both sides")
	}
	return err
}

// event handles an event of the session's ID.
func (s *session) event(ev *rdmacm.Event) {
	switch t := ev.Type; {
	case t == rdmacm.EventAddrResolved:
		if err := s.id.ResolveRoute(s.ctx, cmapp.ResolveTimeout); err != nil {
			s.end(err)
		}
	case t == rdmacm.EventRouteResolved, t == rdmacm.EventConnectResponse, t == rdmacm.EventEstablished:
		s.debugf("%s\n", strings.TrimPrefix(t.String(), "RDMA_CM_EVENT_"))
		select {
		case s.steps <- t:
		default: // more of them than there can be
		}
	case cmapp.Failed(t):
		s.end(cmapp.Failure(ev))
	case t == rdmacm.EventDisconnected:
		s.errorf("%s DISCONNECT EVENT...\n", s.role())
		select {
		case s.over <- struct{}{}:
		default:
		}
		s.end(errDisconnected)
	case t == rdmacm.EventDeviceRemoval:
		s.errorf("cma detected device removal!!!!\n")
		s.end(fmt.Errorf("the device was removed: %w", syscall.ENODEV))
	default:
		s.errorf("unhandled event: %v, ignoring\n", t)
	}
}

// disconnect ends the connection and waits until the peer knows, since with this process
// its connection manager ends.
func (s *session) disconnect() error {
	if s.cfg.OwnQP {
		if err := s.qp.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState); err != nil {
			return err
		}
	}
	ctx, cancel := cmapp.Cleanup(s.ctx)
	defer cancel()
	if s.cfg.Server { // before the connection is established there is nothing to disconnect
		select {
		case <-s.steps:
		case <-s.ctx.Done():
		case <-ctx.Done():
		}
	}
	err := s.id.Disconnect(ctx)
	if errors.Is(err, syscall.EINVAL) { // it was not connected
		return nil
	}
	if err == nil {
		select {
		case <-s.over:
		case <-ctx.Done(): // the peer does not answer any more
		}
	}
	return err
}

// close gives everything back but the ID of a client.
func (s *session) close() error {
	s.end(errDisconnected)
	s.debugf("rping_free_buffers called on cb %p\n", s)
	ctx, cancel := cmapp.Cleanup(s.ctx)
	defer cancel()
	var errs []error
	if s.cfg.OwnQP && s.qp != nil {
		errs = append(errs, s.qp.DestroyContext(ctx))
	} else {
		errs = append(errs, s.id.DestroyQP(ctx))
	}
	for _, mr := range []*verbs.MR{s.recvMR, s.sendMR, s.dataMR, s.startMR} {
		if mr != nil {
			errs = append(errs, mr.Dereg())
		}
	}
	if s.cq != nil {
		errs = append(errs, s.cq.Destroy())
	}
	if s.pd != nil {
		errs = append(errs, s.pd.Dealloc())
	}
	s.debugf("destroy cm_id %p\n", s.id)
	return errors.Join(append(errs, s.id.Destroy(ctx))...)
}

func (p *program) role() string {
	if p.cfg.Server {
		return "server"
	}
	return "client"
}
