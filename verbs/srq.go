package verbs

import (
	"context"
	"sync"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// SRQ is a shared receive queue (struct ibv_srq).
type SRQ struct {
	life
	pd    *PD
	srq   driver.SRQ
	xrcd  *XRCD // nil: not one for XRC
	cq    *CQ
	user  any
	async ledger

	oneMu sync.Mutex
	one   [1]RecvWR
}

// CreateSRQ makes a shared receive queue (ibv_create_srq). The sizes that were
// really given, at least those asked for, are written back to attr; SRQLimit is
// ignored. user is what SRQ.UserContext returns. EINVAL, ENOMEM: attr is beyond
// the device's limits; attr has not changed then.
func (p *PD) CreateSRQ(attr *ib.SRQAttr, user any) (*SRQ, error) {
	return p.createSRQ("create_srq", attr, user)
}

func (p *PD) createSRQ(op string, attr *ib.SRQAttr, user any) (*SRQ, error) {
	if attr == nil {
		return nil, paramErr(op, "attr", "is nil", syscall.EINVAL)
	}
	if !p.hold(anSRQ) {
		return nil, opErr(op, errPDClosed)
	}
	s := &SRQ{pd: p, user: user}
	a := *attr
	a.SRQLimit = 0
	var err error
	s.srq, err = p.ctx.dev.CreateSRQ(p.pd, &a, func(t ib.EventType) { p.ctx.raise(&AsyncEvent{Type: t, SRQ: s}, &s.async) })
	if err != nil {
		p.drop(anSRQ)
		return nil, opErr(op, err)
	}
	attr.MaxWR, attr.MaxSGE = a.MaxWR, a.MaxSGE
	return s, nil
}

// PD is the domain of the queue.
func (s *SRQ) PD() *PD { return s.pd }

// UserContext is what was given to CreateSRQ.
func (s *SRQ) UserContext() any { return s.user }

// Num is the queue's number (ibv_get_srq_num).
func (s *SRQ) Num() uint32 { return s.srq.Num() }

// Modify changes what mask names (ibv_modify_srq). ib.SRQMaxWR resizes the
// queue, and the real size is written back to attr. ib.SRQLimit arms the limit:
// ib.EventSRQLimitReached is raised once when fewer requests are left. EINVAL:
// out of range, or fewer than the queue holds; nothing has changed then.
func (s *SRQ) Modify(attr *ib.SRQAttr, mask ib.SRQAttrMask) error {
	const op = "modify_srq"
	switch {
	case attr == nil:
		return paramErr(op, "attr", "is nil", syscall.EINVAL)
	case !s.alive():
		return opErr(op, errSRQClosed)
	}
	a := *attr
	if err := s.srq.Modify(&a, mask); err != nil {
		return opErr(op, err)
	}
	if mask&ib.SRQMaxWR != 0 {
		attr.MaxWR = a.MaxWR
	}
	return nil
}

// Query tells the sizes and the armed limit, 0 for none (ibv_query_srq).
func (s *SRQ) Query() (ib.SRQAttr, error) {
	if !s.alive() {
		return ib.SRQAttr{}, opErr("query_srq", errSRQClosed)
	}
	return s.srq.Query(), nil
}

// PostRecv posts receive requests in order (ibv_post_srq_recv). If one is bad,
// those before it are posted and the error holds a *PostError. ENOMEM: the queue
// is full; EINVAL: too many elements.
func (s *SRQ) PostRecv(wrs []RecvWR) error {
	const op = "post_srq_recv"
	if !s.alive() {
		return opErr(op, errSRQClosed)
	}
	if n, err := s.srq.PostRecv(wrs); err != nil {
		return recvErr(op, wrs, n, err)
	}
	return nil
}

// PostRecvOne posts one receive request without a list.
func (s *SRQ) PostRecvOne(wr *RecvWR) error {
	if wr == nil {
		return paramErr("post_srq_recv", "wr", "is nil", syscall.EINVAL)
	}
	s.oneMu.Lock()
	defer s.oneMu.Unlock()
	s.one[0] = *wr
	err := s.PostRecv(s.one[:])
	s.one[0] = RecvWR{}
	return err
}

func recvErr(op string, wrs []RecvWR, n int, err error) error {
	if n < 0 || n >= len(wrs) {
		return opErr(op, err)
	}
	return postErr(op, n, wrs[n].WRID, err)
}

// Destroy is DestroyContext without limit.
func (s *SRQ) Destroy() error { return s.DestroyContext(context.Background()) }

// DestroyContext destroys the queue (ibv_destroy_srq), then waits until each
// event that was got for it is acknowledged. EBUSY: a queue pair uses it. With
// ctx's error the queue is of no use any more; calling again waits again.
func (s *SRQ) DestroyContext(ctx context.Context) error {
	return opErr("destroy_srq", s.end(ctx, s.srq.Destroy, func(ctx context.Context) error {
		s.pd.ctx.events.mute(&s.async)
		return s.async.wait(ctx, "AsyncEvent.Ack")
	}, s.release))
}
