package rdmacm_test

import (
	"errors"
	"flag"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/port/udp"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

var leakCycles = flag.Int("rdmacm.cycles", 3000, "how many connections are made and ended to look for leaks")

// leakable is what a process and a manager have.
type leakable struct {
	goroutines, files, ids, ports, conns int
	heap                                 uint64
}

func measure(t *testing.T, m *rdmacm.Manager) (l leakable) {
	t.Helper()
	// What was ended is in TIMEWAIT for a second.
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if l.ids, l.ports, l.conns = m.Left(); l.conns == 0 || time.Now().After(deadline) {
			break
		}
	}
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	l.heap, l.goroutines = s.HeapAlloc, runtime.NumGoroutine()
	l.files = len(cmOK(os.ReadDir("/proc/self/fd"))(t))
	return l
}

// check compares what is there after n cycles with what was there before.
func (l leakable) check(t *testing.T, after leakable, n int) {
	t.Helper()
	grown := int64(after.heap) - int64(l.heap)
	t.Logf("%d cycles, %d bytes more: %+v, before %+v", n, grown, after, l)
	// Tables keep the size that they once had; a leak of one object in each cycle is more.
	if grown > 32*int64(n)+512<<10 {
		t.Errorf("memory has grown by %d bytes in %d cycles", grown, n)
	}
	after.heap, l.heap = 0, 0
	// A thread of the runtime may have taken a descriptor or two; of many cycles some more,
	// since the tests of other packages, which come meanwhile, may share devices with this
	// process: it then has descriptors of theirs.
	if after.files > l.files+2+n/1000 || after.goroutines > l.goroutines+1 {
		t.Errorf("%+v after %d cycles, before %+v", after, n, l)
	}
	if after.ids != l.ids || after.ports != l.ports || after.conns != 0 {
		t.Errorf("%+v after %d cycles, before %+v", after, n, l)
	}
}

// Connections that are made, used for nothing and ended leave nothing behind:
// goroutines, descriptors, memory, ports, communication ids, queue pair numbers.
func TestCase102_NoLeakInConnections(t *testing.T) {
	a := loopAddr()
	d := cmOK(soft.NewDevice(soft.Config{Name: "soft_leak", NetDev: "lo", Addrs: []netip.Addr{a}, Port: cmOK(udp.Open(udp.Config{}))(t)}))(t)
	vc := verbs.NewContext(d)
	m := rdmacm.NewManager(rdmacm.WithContexts(vc))
	ctx := t.Context()
	ch := cmOK(m.NewEventChannel())(t)
	l := cmOK(m.NewID(ch, rdmacm.PSTCP, nil))(t)
	if err := errors.Join(l.Bind(netip.AddrPortFrom(a, 0)), l.Listen(0)); err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(a, l.SrcPort())
	more := func() error {
		c, err := m.NewID(ch, rdmacm.PSTCP, nil)
		if err == nil {
			err = c.ResolveAddr(ctx, netip.AddrPort{}, to, time.Second)
		}
		return err
	}
	// cycles makes n connections, at most 32 at a time; every fourth one is refused.
	cycles := func(n int) {
		begun, ends := 0, 0
		for ends < 2*n {
			for ; begun < n && begun-ends/2 < 32; begun++ {
				if err := more(); err != nil {
					t.Fatal(err)
				}
			}
			e := cmOK(ch.Get(ctx))(t)
			id, typ := e.ID, e.Type
			if err := e.Ack(); err != nil {
				t.Fatal(err)
			}
			var err error
			switch typ {
			case rdmacm.EventAddrResolved:
				err = id.ResolveRoute(ctx, time.Second)
			case rdmacm.EventRouteResolved:
				err = errors.Join(id.CreateQP(nil, cmAttr()), id.Connect(ctx, nil))
			case rdmacm.EventConnectRequest:
				if begun%4 == 0 {
					err = errors.Join(id.Reject(nil), id.DestroyEP(ctx))
					ends++
					break
				}
				err = errors.Join(id.CreateQP(nil, cmAttr()), id.Accept(ctx, nil))
			case rdmacm.EventEstablished:
				if id.PeerAddr() == to { // the active end
					err = id.Disconnect(ctx)
				}
			case rdmacm.EventDisconnected, rdmacm.EventRejected:
				ends++
				err = id.DestroyEP(ctx)
			case rdmacm.EventTimewaitExit:
			default:
				t.Fatal(e)
			}
			if err != nil {
				t.Fatal(typ, err)
			}
		}
	}
	cycles(min(*leakCycles, 3000)) // tables are then as large as TIMEWAIT makes them
	before := measure(t, m)
	cycles(*leakCycles)
	before.check(t, measure(t, m), *leakCycles)
	if err := errors.Join(l.Destroy(ctx), ch.Close(), m.Close(), d.Leaks(), vc.Close()); err != nil {
		t.Error(err)
	}
}

// The loop that was once a leak until memory was gone: channel, ID and address, made
// and given back.
func TestCase102_NoLeakInBinds(t *testing.T) {
	const n = 100_000
	a := loopAddr()
	m := rdmacm.NewManager(rdmacm.WithProviders(soft.NewProvider(soft.WithAddrs("lo", a))))
	ctx := t.Context()
	loop := func(n int) {
		for range n {
			ch := cmOK(m.NewEventChannel())(t)
			id := cmOK(m.NewID(ch, rdmacm.PSTCP, nil))(t)
			if err := errors.Join(id.Bind(netip.AddrPortFrom(a, 0)), id.Destroy(ctx), ch.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
	loop(1000)
	before := measure(t, m)
	loop(n)
	before.check(t, measure(t, m), n)
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}
