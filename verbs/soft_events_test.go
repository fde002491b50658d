package verbs_test

import (
	"context"
	"errors"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// raised is what a scenario has brought about.
type raised struct {
	n       *node
	cq      *verbs.CQ // the object of the event, or none
	qp      *verbs.QP
	srq     *verbs.SRQ
	port    uint8
	destroy func(context.Context) error // of the object; nil: there is none
	also    []ib.EventType              // other events that come with it
}

func raisedQP(n *node, q *verbs.QP, also ...ib.EventType) raised {
	return raised{n: n, qp: q, destroy: q.DestroyContext, also: also}
}

// scenarios raise each event that a software RoCE device has, each in a way that
// could raise it more than once.
var scenarios = map[ib.EventType]func(*testing.T) raised{
	// Completions that find their queue full (IBA 11.6.3.1).
	ib.EventCQErr: func(t *testing.T) raised {
		r := newRig(t, 9000)
		cq := ok(r.a.ctx.CreateCQ(1, nil, nil))(t)
		r.a.later(cq.Destroy)
		q := r.a.flusher(cq)
		for range 4 {
			post(t, q, verbs.SendWR{Opcode: ib.WRSend})
		}
		return raised{n: r.a, cq: cq, destroy: func(ctx context.Context) error {
			return errors.Join(q.DestroyContext(ctx), cq.DestroyContext(ctx))
		}}
	},
	// The queue pair whose completions were lost, when it was working.
	ib.EventQPFatal: func(t *testing.T) raised {
		r := newRig(t, 9000)
		cq := ok(r.a.ctx.CreateCQ(1, nil, nil))(t)
		r.a.later(cq.Destroy)
		attr := r.a.attr(ib.RC)
		attr.SendCQ = cq
		qa, qb := r.connect(attr, r.b.attr(ib.RC))
		for range 4 {
			receive(t, qb)
			post(t, qa, verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled})
		}
		r.settle()
		if qa.State() != ib.QPStateErr {
			t.Errorf("the queue pair is in %v", qa.State())
		}
		return raisedQP(r.a, qa, ib.EventCQErr)
	},
	// What the responder answers with a NAK of an invalid request; hardware raises
	// it, rdma_rxe does not (IBA 9.9.3.1).
	ib.EventQPReqErr: func(t *testing.T) raised {
		r := newRig(t, 9000)
		qa, qb := r.pair(ib.RC)
		if err := qb.Modify(&ib.QPAttr{QPState: ib.QPStateRTS}, ib.QPAttrState|ib.QPAttrAccessFlags); err != nil {
			t.Fatal(err)
		}
		writes(t, r, qa, 1)
		r.want(ib.WCRemInvReqErr, ib.WCWRFlushErr)
		return raisedQP(r.b, qb)
	},
	// ... of a remote access error.
	ib.EventQPAccessErr: func(t *testing.T) raised {
		r := newRig(t, 9000)
		qa, qb := r.pair(ib.RC)
		writes(t, r, qa, 1)
		r.want(ib.WCRemAccessErr, ib.WCWRFlushErr)
		return raisedQP(r.b, qb)
	},
	// The first packet in RTR.
	ib.EventCommEst: func(t *testing.T) raised {
		r := newRig(t, 9000)
		qa, qb := r.a.qp(r.a.attr(ib.RC)), r.b.qp(r.b.attr(ib.RC))
		r.a.to(qa, ib.QPStateRTS, qb, r.b.addr)
		r.b.to(qb, ib.QPStateRTR, qa, r.a.addr)
		for range 3 {
			receive(t, qb)
			post(t, qa, verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled})
		}
		r.want(ib.WCSuccess, ib.WCSuccess, ib.WCSuccess)
		return raisedQP(r.b, qb)
	},
	// What had started is finished in SQD, if that was asked for.
	ib.EventSQDrained: func(t *testing.T) raised {
		r := newRig(t, 9000)
		qa, qb := r.pair(ib.RC)
		for range 2 {
			receive(t, qb)
			post(t, qa, verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled})
		}
		if err := qa.Modify(&ib.QPAttr{QPState: ib.QPStateSQD, EnSQDAsyncNotify: true}, ib.QPAttrState|ib.QPAttrEnSQDAsyncNotify); err != nil {
			t.Fatal(err)
		}
		r.want(ib.WCSuccess, ib.WCSuccess)
		return raisedQP(r.a, qa)
	},
	// The interface is deleted.
	ib.EventDeviceFatal: func(t *testing.T) raised {
		_, c := changingRig(t, false, "192.0.2.1")
		c.report(soft.Netdev{Gone: true})
		c.report(soft.Netdev{Gone: true})
		return raised{n: c.node}
	},
	ib.EventPortErr: func(t *testing.T) raised {
		_, c := changingRig(t, false, "192.0.2.1")
		c.now.Up = false
		c.report(c.now)
		c.report(c.now)
		return raised{n: c.node, port: 1}
	},
	ib.EventPortActive: func(t *testing.T) raised {
		_, c := changingRig(t, false, "192.0.2.1")
		for _, up := range []bool{false, true, true} {
			c.now.Up = up
			c.report(c.now)
		}
		return raised{n: c.node, port: 1, also: []ib.EventType{ib.EventPortErr}}
	},
	ib.EventGIDChange: func(t *testing.T) raised {
		_, c := changingRig(t, false, "192.0.2.1")
		for range 2 {
			c.addrs("192.0.2.3", "192.0.2.4")
		}
		return raised{n: c.node, port: 1}
	},
	// Fewer receive requests than the limit that was armed.
	ib.EventSRQLimitReached: func(t *testing.T) raised {
		r := newRig(t, 9000)
		srq := r.b.srq(&ib.SRQAttr{MaxWR: 8})
		attr := r.b.attr(ib.RC)
		attr.SRQ = srq
		qa, qb := r.connect(r.a.attr(ib.RC), attr)
		for range 4 {
			if err := srq.PostRecvOne(&verbs.RecvWR{}); err != nil {
				t.Fatal(err)
			}
		}
		if err := srq.Modify(&ib.SRQAttr{SRQLimit: 3}, ib.SRQLimit); err != nil {
			t.Fatal(err)
		}
		for range 4 {
			post(t, qa, verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled})
		}
		r.want(ib.WCSuccess, ib.WCSuccess, ib.WCSuccess, ib.WCSuccess)
		return raised{n: r.b, srq: srq, destroy: func(ctx context.Context) error {
			return errors.Join(qb.DestroyContext(ctx), srq.DestroyContext(ctx))
		}}
	},
	// A queue pair with a shared receive queue takes nothing more from it.
	ib.EventQPLastWQEReached: func(t *testing.T) raised {
		r := newRig(t, 9000)
		attr := r.a.attr(ib.RC)
		attr.SRQ = r.a.srq(&ib.SRQAttr{MaxWR: 8})
		q := r.a.qp(attr)
		r.a.to(q, ib.QPStateRTS, q, r.a.addr)
		for range 2 {
			if err := q.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState); err != nil {
				t.Fatal(err)
			}
		}
		return raisedQP(r.a, q)
	},
}

// neverRaised are the events that no software RoCE device has, and why.
var neverRaised = map[ib.EventType]string{
	ib.EventPathMig:          "there is no path migration",
	ib.EventPathMigErr:       "there is no path migration",
	ib.EventLIDChange:        "Ethernet has no LIDs",
	ib.EventPKeyChange:       "the P_Key table is fixed",
	ib.EventSMChange:         "Ethernet has no subnet manager",
	ib.EventClientReregister: "Ethernet has no subnet manager",
	ib.EventSRQErr:           "a receive queue in our own memory does not fail",
	ib.EventWQFatal:          "there are no work queues outside queue pairs",
}

func post(t *testing.T, q *verbs.QP, wr verbs.SendWR) {
	t.Helper()
	if err := q.PostSendOne(&wr); err != nil {
		t.Fatal(err)
	}
}

func receive(t *testing.T, q *verbs.QP) {
	t.Helper()
	if err := q.PostRecvOne(&verbs.RecvWR{}); err != nil {
		t.Fatal(err)
	}
}

// writes posts two WRITEs to a key.
func writes(t *testing.T, r *rig, q *verbs.QP, key ib.RKey) {
	t.Helper()
	m := r.a.mem(8)
	for range 2 {
		post(t, q, verbs.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: []verbs.SGE{m.SGE(0, 8)}, RKey: key})
	}
}

// settle lets everything happen that is under way.
func (r *rig) settle() {
	r.net.Kick(r.a.port)
	r.net.Kick(r.b.port)
	r.net.RunFor(1e9)
}

// want takes completions of a, which must have these statuses, and settles.
func (r *rig) want(list ...ib.WCStatus) {
	r.t.Helper()
	for i, s := range statuses(r.wcs(r.a.cq, len(list))) {
		if s != list[i] {
			r.t.Errorf("completion %d: %v, want %v", i, s, list[i])
		}
	}
	r.settle()
}

// Every event there is: raised once, with its object, and destroying the object
// waits until it is acknowledged, as ibv_get_async_event(3) says; destroying
// others does not. Or never raised, for a reason.
func TestEveryAsyncEvent(t *testing.T) {
	if s := (ib.EventWQFatal + 1).String(); s != "EventType(20)" {
		t.Errorf("there is an event %q that this test does not know", s)
	}
	for typ := ib.EventCQErr; typ <= ib.EventWQFatal; typ++ {
		scenario := scenarios[typ]
		if why := neverRaised[typ]; (scenario != nil) == (why != "") {
			t.Errorf("%v: has a scenario: %v; never raised, because: %q", typ.Name(), scenario != nil, why)
		}
		if scenario == nil {
			continue
		}
		t.Run(typ.Name(), func(t *testing.T) {
			r := scenario(t)
			done, cancel := context.WithCancel(t.Context())
			cancel()
			var event *verbs.AsyncEvent
			also := map[ib.EventType]int{}
			for {
				e, err := r.n.ctx.GetAsyncEvent(done)
				if err != nil {
					break
				}
				if e.Type != typ {
					also[e.Type]++
					e.Ack()
					continue
				}
				if event != nil {
					t.Error("raised twice")
					e.Ack()
					continue
				}
				event = e
				if e.CQ != r.cq || e.QP != r.qp || e.SRQ != r.srq || e.Port != r.port {
					t.Errorf("%+v, want %+v", e, r)
				}
			}
			if event == nil {
				t.Fatal("not raised")
			}
			for _, a := range r.also {
				if also[a]--; also[a] == 0 {
					delete(also, a)
				}
			}
			if len(also) != 0 {
				t.Errorf("other events: %v", also)
			}
			if r.destroy == nil {
				event.Ack()
				return
			}
			// Objects that have nothing to do with it.
			cq := ok(r.n.ctx.CreateCQ(1, nil, nil))(t)
			srq := ok(r.n.pd.CreateSRQ(&ib.SRQAttr{MaxWR: 1}, nil))(t)
			q := ok(r.n.pd.CreateQP(&verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, SRQ: srq, Type: ib.RC}))(t)
			if err := errors.Join(q.DestroyContext(done), srq.DestroyContext(done), cq.DestroyContext(done)); err != nil {
				t.Errorf("objects without events: %v", err)
			}
			if err := r.destroy(done); !errors.Is(err, context.Canceled) {
				t.Errorf("destroyed before the event is acknowledged: %v", err)
			}
			event.Ack()
			if err := r.destroy(done); err != nil {
				t.Error(err)
			}
		})
	}
}

// Queue pairs that share a completion queue in error end one by one, at their
// next completion; those with another queue go on. A queue pair on the queue in
// error cannot be made to work again.
func TestCase69_OverrunEndsQueuePairs(t *testing.T) {
	r := newRig(t, 9000)
	cq := ok(r.a.ctx.CreateCQ(2, nil, nil))(t)
	r.a.later(cq.Destroy)
	small := r.a.attr(ib.RC)
	small.SendCQ = cq
	q1, p1 := r.connect(small, r.b.attr(ib.RC))
	q2, p2 := r.connect(small, r.b.attr(ib.RC))
	mixed := r.a.attr(ib.RC) // its receives complete there
	mixed.RecvCQ = cq
	q3, p3 := r.connect(mixed, r.b.attr(ib.RC))
	other, p4 := r.pair(ib.RC)
	send := func(from, to *verbs.QP, n int) {
		t.Helper()
		for range n {
			receive(t, to)
			post(t, from, verbs.SendWR{WRID: 7, Opcode: ib.WRSend, Flags: ib.SendSignaled})
		}
		r.settle()
	}
	states := func(want ...ib.QPState) {
		t.Helper()
		for i, q := range []*verbs.QP{q1, q2, q3, other} {
			if q.State() != want[i] {
				t.Errorf("queue pair %d is in %v, want %v", i+1, q.State(), want[i])
			}
		}
	}
	const rts, failed = ib.QPStateRTS, ib.QPStateErr
	send(q1, p1, 3)
	states(failed, rts, rts, rts)
	if e := r.a.event(ib.EventCQErr); e.CQ != cq {
		t.Error(e)
	}
	if e := r.a.event(ib.EventQPFatal); e.QP != q1 {
		t.Error(e)
	}
	r.a.noEvent()
	// Unsignaled work has no completion to lose.
	receive(t, p2)
	post(t, q2, verbs.SendWR{Opcode: ib.WRSend})
	r.settle()
	states(failed, rts, rts, rts)
	send(q2, p2, 1)
	states(failed, failed, rts, rts)
	if e := r.a.event(ib.EventQPFatal); e.QP != q2 {
		t.Error(e)
	}
	send(q3, p3, 1) // sends complete elsewhere
	states(failed, failed, rts, rts)
	send(p3, q3, 1)
	states(failed, failed, failed, rts)
	if e := r.a.event(ib.EventQPFatal); e.QP != q3 {
		t.Error(e)
	}
	send(other, p4, 3)
	states(failed, failed, failed, rts)
	r.a.noEvent()
	// What the queue got before is there.
	wcs := make([]verbs.WC, 4)
	if n, err := cq.Poll(wcs); n != 2 || err != nil || wcs[0].WRID != 7 || wcs[1].Status != ib.WCSuccess {
		t.Error(n, err, wcs[:n])
	}
	// Again with the same queue: the next completion is lost as well.
	if err := q1.Modify(&ib.QPAttr{QPState: ib.QPStateReset}, ib.QPAttrState); err != nil {
		t.Fatal(err)
	}
	p5 := r.b.qp(r.b.attr(ib.RC))
	r.a.to(q1, rts, p5, r.b.addr)
	r.b.to(p5, rts, q1, r.a.addr)
	send(q1, p5, 1)
	if e := r.a.event(ib.EventQPFatal); e.QP != q1 || q1.State() != failed {
		t.Error(e, q1.State())
	}
}
