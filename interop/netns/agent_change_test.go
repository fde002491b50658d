//go:build interop && linux

package netns

import (
	"context"
	"errors"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Event is an asynchronous event.
type Event struct {
	Type    ib.EventType
	Port    uint8
	QP      int // index in the agent, -1: none
	Failure Failure
}

// Event waits for an asynchronous event, at most for a time, and acknowledges it.
func (a *Agent) Event(limit time.Duration, e *Event) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	got, err := a.dev.GetAsyncEvent(ctx)
	if err != nil {
		e.Failure = failure(err)
		return nil
	}
	defer got.Ack()
	e.Type, e.Port, e.QP = got.Type, got.Port, -1
	for i, q := range a.qps {
		if q.qp == got.QP {
			e.QP = i
		}
	}
	return nil
}

// Look is what the port is at the moment.
type Look struct {
	State     ib.PortState
	ActiveMTU int
	GIDs      map[int]string // addresses by their index
	Failure   Failure
}

// Look looks at the port.
func (a *Agent) Look(_ struct{}, l *Look) error {
	attr, err := a.dev.QueryPort(1)
	if err != nil {
		l.Failure = failure(err)
		return nil
	}
	gids, err := a.dev.QueryGIDTable()
	l.Failure = failure(err)
	l.State, l.ActiveMTU, l.GIDs = attr.State, attr.ActiveMTU.Bytes(), map[int]string{}
	for _, g := range gids {
		l.GIDs[g.Index] = g.GID.Addr().String()
	}
	return nil
}

// State is a queue pair's state.
func (a *Agent) State(qp int, s *ib.QPState) error {
	*s = a.qps[qp].qp.State()
	return nil
}

// PostOnly posts Count pieces of work and does not wait.
func (a *Agent) PostOnly(w WorkArgs, f *Failure) error {
	q := a.qps[w.QP]
	for i := range w.Count {
		wr := verbs.SendWR{
			WRID: uint64(i), Opcode: w.Op, Flags: ib.SendSignaled, SGList: []verbs.SGE{q.mr.SGE(w.Off, w.Len)},
			RemoteAddr: q.to.Addr, RKey: q.to.RKey,
		}
		if err := q.qp.PostSendOne(&wr); err != nil {
			*f = failure(err)
			break
		}
	}
	return nil
}

// Close destroys everything and closes the device.
func (a *Agent) Close(_ struct{}, f *Failure) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	var errs []error
	for _, q := range a.qps {
		if q.ah != nil {
			errs = append(errs, q.ah.Destroy())
		}
		errs = append(errs, q.qp.Destroy(), q.cq.Destroy(), q.mr.Dereg())
	}
	a.qps = nil
	*f = failure(errors.Join(append(errs, a.pd.Dealloc(), a.dev.Close())...))
	return nil
}
