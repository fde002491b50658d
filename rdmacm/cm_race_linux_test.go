package rdmacm_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/rdmacm"
)

// Clients and servers that connect, refuse, give up and disconnect at random moments,
// all at once: no call fails in a way that it may not, nothing hangs, nothing is
// left.
func TestAllAtOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	a := loopAddr()
	m := loopManager(t, a)
	ctx := patient(t)
	ch := cmOK(m.NewEventChannel())(t)
	l := cmOK(m.NewID(ch, rdmacm.PSTCP, nil))(t)
	if err := errors.Join(l.Bind(netip.AddrPortFrom(a, 0)), l.Listen(0)); err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(a, l.SrcPort())
	stop, halt := context.WithCancel(ctx)
	var servers, clients sync.WaitGroup
	for i := range 2 {
		servers.Add(1)
		go func() {
			defer servers.Done()
			raceServer(t, stop, ctx, ch, rand.New(rand.NewPCG(seed, uint64(i))))
		}()
	}
	for i := range 6 {
		clients.Add(1)
		go func() {
			defer clients.Done()
			rng := rand.New(rand.NewPCG(seed, uint64(100+i)))
			for range 60 {
				raceClient(t, ctx, m, to, rng)
			}
		}()
	}
	clients.Wait()
	halt()
	servers.Wait()
	// What is left of requests goes with the listener, the rest by hand.
	for {
		e, err := ch.Poll()
		if err != nil {
			break
		}
		e.Ack()
		if e.ID != l {
			if err := e.ID.DestroyEP(ctx); err != nil {
				t.Error(err)
			}
		}
	}
	if err := l.DestroyEP(ctx); err != nil {
		t.Error(err)
	}
	raceIDs.Range(func(k, _ any) bool {
		if err := k.(*rdmacm.ID).DestroyEP(ctx); err != nil {
			t.Error(err)
		}
		raceIDs.Delete(k)
		return true
	})
	if err := ch.Close(); err != nil {
		t.Error(err)
	}
}

// raceIDs are the servers' IDs that live.
var raceIDs sync.Map

func raceServer(t *testing.T, stop, ctx context.Context, ch *rdmacm.EventChannel, rng *rand.Rand) {
	for {
		e, err := ch.Get(stop)
		if err != nil {
			return
		}
		id := e.ID
		if err := e.Ack(); err != nil {
			t.Error(err)
		}
		end := func() {
			raceIDs.Delete(id)
			if err := id.DestroyEP(ctx); err != nil {
				t.Error(err)
			}
		}
		switch e.Type {
		case rdmacm.EventConnectRequest:
			raceIDs.Store(id, true)
			switch rng.IntN(8) {
			case 0:
				err = id.Reject(nil)
				end()
			case 1:
				end()
			default:
				if err = id.CreateQP(nil, cmAttr()); err == nil {
					err = id.Accept(ctx, nil)
				}
			}
			// The client may have given up, the other server may have destroyed it.
			if err != nil && !errors.Is(err, syscall.EINVAL) {
				t.Error(err)
			}
		case rdmacm.EventEstablished:
			if rng.IntN(4) == 0 {
				if err := id.Disconnect(ctx); err != nil && !errors.Is(err, syscall.EINVAL) {
					t.Error(err)
				}
			}
		case rdmacm.EventDisconnected:
			if rng.IntN(2) == 0 {
				if err := id.Disconnect(ctx); err != nil && !errors.Is(err, syscall.EINVAL) {
					t.Error(err)
				}
			}
			end()
		case rdmacm.EventRejected, rdmacm.EventUnreachable:
			end()
		case rdmacm.EventTimewaitExit:
		default:
			t.Error(e)
		}
	}
}

func raceClient(t *testing.T, ctx context.Context, m *rdmacm.Manager, to netip.AddrPort, rng *rand.Rand) {
	c, err := m.CreateEP(ctx, &rdmacm.AddrInfo{Dst: to}, nil, cmAttr())
	if err != nil {
		t.Error(err)
		return
	}
	short, cancel := ctx, context.CancelFunc(func() {})
	if rng.IntN(4) == 0 {
		short, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(2000))*time.Microsecond)
	}
	err = c.Connect(short, nil)
	cancel()
	switch {
	case err == nil:
		if rng.IntN(3) > 0 {
			if err := c.Disconnect(ctx); err != nil {
				t.Error(err)
			}
		}
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, context.DeadlineExceeded):
	default:
		t.Error(err)
	}
	if err := c.DestroyEP(ctx); err != nil {
		t.Error(err)
	}
}
