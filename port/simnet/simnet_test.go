package simnet

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
	addr6 = netip.MustParseAddr("fd00::6")
	addr7 = netip.MustParseAddr("fd00::7")
)

// end is a port with what arrived there.
type end struct {
	p   *Port
	got []pkt.Datagram
	max int // datagrams a turn
}

func newEnd(t testing.TB, n *Net, cfg Config, addrs ...netip.Addr) *end {
	t.Helper()
	e := &end{p: n.NewPort(cfg), max: 64}
	for _, a := range addrs {
		if _, err := e.p.AddLocal(a); err != nil {
			t.Fatal(err)
		}
	}
	n.Attach(e.p, e.turn)
	return e
}

func (e *end) turn(int64) int64 {
	rx := pkt.Rx{Dgrams: make([]pkt.Datagram, e.max)}
	if n := e.p.Recv(&rx); n != len(rx.Dgrams) {
		panic("Recv does not set the length")
	}
	for _, d := range rx.Dgrams {
		d.Data = bytes.Clone(d.Data)
		e.got = append(e.got, d)
	}
	return 0
}

// segments are the single datagrams of all that arrived.
func (e *end) segments() (out [][]byte) {
	for _, d := range e.got {
		for b := d.Data; len(b) > 0; {
			n := min(d.SegSize, len(b))
			out = append(out, b[:n])
			b = b[n:]
		}
	}
	return out
}

func flow(src, dst netip.Addr) *pkt.Flow {
	return &pkt.Flow{Path: roce.NewPath(src, dst, 50000), To: netip.AddrPortFrom(dst, roce.Port)}
}

// send sends packets numbered from first, each with payload bytes of payload.
func send(p *Port, f *pkt.Flow, first, count, payload int) {
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: p.Caps().MaxSegs})
	data := make([]byte, payload)
	for i := range data {
		data[i] = byte(i)
	}
	for i := range count {
		if tx.Full(1) {
			p.Send(tx)
			tx.Reset()
		}
		h := tx.Begin(f, roce.BTHLen, payload)
		roce.BTH(h).Put(roce.OpRCSendMiddle, false, -payload&3, 0xFFFF, 7, false, psn.PSN(first+i))
		if err := tx.Payload(data); err != nil {
			panic(err)
		}
		tx.End()
	}
	p.Send(tx)
}

func psns(segs [][]byte) (out []int) {
	for _, s := range segs {
		out = append(out, int(roce.BTH(s).PSN()))
	}
	return out
}

func TestAddLocal(t *testing.T) {
	n := New(1)
	a := n.NewPort(Config{Addrs: []netip.Addr{addrA, addr6}})
	b := n.NewPort(Config{})
	i, err := a.AddLocal(addrA)
	if err != nil || i != 0 {
		t.Fatal(i, err)
	}
	if i, err = a.AddLocal(addr6); err != nil || i != 1 {
		t.Fatal(i, err)
	}
	if i, err = a.AddLocal(addrA); err != nil || i != 0 {
		t.Fatalf("again: index %d, %v", i, err)
	}
	if _, err = a.AddLocal(addrB); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Fatalf("foreign address: %v", err)
	}
	if _, err = b.AddLocal(addrA); !errors.Is(err, syscall.EADDRINUSE) {
		t.Fatalf("taken address: %v", err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err = b.AddLocal(addrA); err != nil {
		t.Fatalf("address of a closed port: %v", err)
	}
	if _, err = b.AddLocal(netip.MustParseAddr("224.0.0.1")); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Fatalf("multicast: %v", err)
	}
}

// Segments leave as Linux sends them, so that every ICRC is right, and arrive
// right whether coalesced or not.
func TestSendSplitsAndRecvCoalesces(t *testing.T) {
	for _, gro := range []float64{0, 0.5, 1} {
		for _, pair := range [][2]netip.Addr{{addrA, addrB}, {addr6, addr7}} {
			t.Run(fmt.Sprint(gro, pair[0]), func(t *testing.T) {
				n := New(1)
				a := newEnd(t, n, Config{}, pair[0])
				b := newEnd(t, n, Config{GRO: gro}, pair[1])
				f := flow(pair[0], pair[1])
				send(a.p, f, 0, 100, 1024)
				send(a.p, f, 100, 1, 1001)
				send(a.p, f, 101, 30, 8)
				n.RunFor(1e6)
				segs := b.segments()
				if len(segs) != 131 {
					t.Fatalf("%d datagrams", len(segs))
				}
				for i, s := range segs {
					if int(roce.BTH(s).PSN()) != i {
						t.Fatalf("datagram %d has PSN %d", i, roce.BTH(s).PSN())
					}
				}
				path := roce.NewPath(pair[0], pair[1], 50000)
				for _, d := range b.got {
					if !d.IDKnown || d.TTL != 64 || d.Src != netip.AddrPortFrom(pair[0], 50000) || d.Dst != pair[1] {
						t.Fatalf("metadata: %+v", d)
					}
					id := d.ID
					for s := d.Data; len(s) > 0; id++ {
						c := min(d.SegSize, len(s))
						if !path.Check(s[:c], id) {
							t.Fatalf("PSN %d: ICRC does not fit identification %d", roce.BTH(s).PSN(), id)
						}
						s = s[c:]
					}
				}
				if gro == 0 && len(b.got) != 131 || gro == 1 && len(b.got) > 6 {
					t.Errorf("%d datagrams with GRO %v", len(b.got), gro)
				}
			})
		}
	}
}

func TestRenumberBreaksICRC(t *testing.T) {
	n := New(1)
	a := newEnd(t, n, Config{Renumber: true, Probe: true}, addrA)
	b := newEnd(t, n, Config{HideID: true}, addrB)
	if !a.p.Caps().NeedsProbe || b.p.Caps().IDKnown {
		t.Fatal("capabilities")
	}
	send(a.p, flow(addrA, addrB), 0, 4, 1024)
	send(a.p, flow(addrA, addrB), 4, 1, 1024)
	n.RunFor(1e6)
	path := roce.NewPath(addrA, addrB, 50000)
	for i, s := range b.segments() {
		// The sender computed for 0 to 3 and the network sent other numbers: a
		// receiver that is told the number refuses, one that solves finds the
		// number computed for.
		if b.got[i].IDKnown {
			t.Fatal("identification told")
		}
		if id, ok := path.Solve(s); !ok || int(id) != i%4 {
			t.Errorf("segment %d: solved %d, %v", i, id, ok)
		}
	}
}

func TestFilterAndSniff(t *testing.T) {
	n := New(1)
	a := newEnd(t, n, Config{}, addrA)
	b := newEnd(t, n, Config{}, addrB)
	is := func(p int) func(*Event) bool {
		return func(e *Event) bool { return e.Err == nil && int(e.BTH.PSN()) == p }
	}
	n.Filter(Every(is(1), Drop))
	n.Filter(Every(is(2), Dup(2)))
	n.Filter(Every(is(3), Delay(500_000)))
	n.Filter(Every(is(4), Corrupt(5)))
	remove := n.Filter(Every(is(6), Drop))
	remove()
	n.Filter(Nth(3, func(e *Event) bool { return int(e.BTH.PSN()) >= 5 }, Drop)) // PSN 7
	var fates []Fate
	var sniffed [][]byte
	n.Sniff(func(e *Event) {
		fates = append(fates, e.Fate)
		sniffed = append(sniffed, bytes.Clone(e.B))
	})
	f := flow(addrA, addrB)
	send(a.p, f, 0, 9, 64)
	n.RunFor(10e6)
	want := []Fate{0, Lost, Duplicated, Reordered, Corrupted, 0, 0, Lost, 0}
	if fmt.Sprint(fates) != fmt.Sprint(want) {
		t.Errorf("fates %v, want %v", fates, want)
	}
	seen := map[int]int{}
	bad := 0
	path := roce.NewPath(addrA, addrB, 50000)
	for i, s := range b.segments() {
		if !path.Check(s, b.got[i].ID) {
			bad++
			continue
		}
		seen[int(roce.BTH(s).PSN())]++
	}
	if fmt.Sprint(seen) != fmt.Sprint(map[int]int{0: 1, 2: 3, 3: 1, 5: 1, 6: 1, 8: 1}) || bad != 1 {
		t.Errorf("arrived %v and %d corrupt", seen, bad)
	}
	for i, s := range sniffed {
		if !path.Check(s, uint16(i)) {
			t.Errorf("packet %d was sniffed with damage", i)
		}
	}
	last := b.got[len(b.got)-1]
	if roce.BTH(last.Data).PSN() != 3 {
		t.Errorf("the delayed packet is not the last: %v", psns(b.segments()))
	}
}

func TestLinkConditions(t *testing.T) {
	const count = 20000
	run := func(l Link) (st Stats, segs [][]byte) {
		n := New(7)
		a := newEnd(t, n, Config{MaxSegs: 1}, addrA)
		b := newEnd(t, n, Config{Queue: count * 2}, addrB)
		n.SetLink(addrA, addrB, l)
		send(a.p, flow(addrA, addrB), 0, count, 16)
		n.RunFor(1e9)
		if n.Buffers() != 0 && len(b.p.held) == 0 {
			t.Errorf("%d buffers left", n.Buffers())
		}
		return n.Stats(), b.segments()
	}
	near := func(name string, got uint64, p float64) {
		t.Helper()
		if f := float64(got) / count; f < 0.8*p || f > 1.2*p {
			t.Errorf("%s: %v of the datagrams, want %v", name, f, p)
		}
	}
	ordered := func(segs [][]byte) bool {
		p := psns(segs)
		for i := 1; i < len(p); i++ {
			if p[i] < p[i-1] {
				return false
			}
		}
		return true
	}
	st, segs := run(Link{})
	if len(segs) != count || !ordered(segs) || st.Sent != count || st.Delivered != count {
		t.Errorf("perfect link: %+v", st)
	}
	st, segs = run(Link{Loss: 0.05})
	near("loss", st.Lost, 0.05)
	if len(segs) != count-int(st.Lost) || !ordered(segs) {
		t.Errorf("loss: %d arrived of %+v", len(segs), st)
	}
	st, segs = run(Link{Dup: 0.1})
	near("dup", st.Duplicated, 0.1)
	if len(segs) != count+int(st.Duplicated) {
		t.Errorf("dup: %d arrived of %+v", len(segs), st)
	}
	_, segs = run(Link{Delay: 1000, Jitter: 5000})
	if len(segs) != count || !ordered(segs) {
		t.Error("jitter changed the order")
	}
	st, segs = run(Link{Reorder: 0.1})
	near("reorder", st.Reordered, 0.1)
	if len(segs) != count || ordered(segs) {
		t.Error("nothing was reordered")
	}
	st, segs = run(Link{Corrupt: 0.1})
	near("corrupt", st.Corrupted, 0.1)
	path, bad := roce.NewPath(addrA, addrB, 50000), 0
	for _, s := range segs {
		ok := path.Check(s, 0)
		s[4] = 0 // FECN and BECN may change on the way
		if !ok || !path.Check(s, 0) {
			bad++
		}
	}
	if d := int(st.Corrupted) - bad; d < 0 || d > 200 {
		t.Errorf("%d corrupted, %d fail the ICRC", st.Corrupted, bad)
	}
	st, segs = run(Link{Partition: true})
	if len(segs) != 0 || st.Partitioned != count {
		t.Errorf("partition: %+v", st)
	}
	st, _ = run(Link{Bandwidth: 1e6, Backlog: 1e6}) // 1 ms at 1 MB/s: a dozen datagrams
	if st.Delivered < 10 || st.Delivered > 20 || st.Lost+st.Delivered != count {
		t.Errorf("bandwidth: %+v", st)
	}
}

func TestPartitionHeals(t *testing.T) {
	n := New(1)
	a := newEnd(t, n, Config{}, addrA)
	b := newEnd(t, n, Config{}, addrB)
	n.SetPartition(addrA, addrB, true)
	f := flow(addrA, addrB)
	send(a.p, f, 0, 3, 16)
	n.After(1e6, func() { n.SetPartition(addrA, addrB, false) })
	n.After(2e6, func() { send(a.p, f, 3, 2, 16) })
	n.RunFor(3e6)
	if got := psns(b.segments()); fmt.Sprint(got) != "[3 4]" {
		t.Errorf("arrived: %v", got)
	}
}

func TestQueueOverflow(t *testing.T) {
	n := New(1)
	a := newEnd(t, n, Config{}, addrA)
	b := newEnd(t, n, Config{Queue: 10}, addrB)
	n.Pause(b.p, 1e6)
	send(a.p, flow(addrA, addrB), 0, 25, 16)
	n.RunFor(999_000)
	if len(b.got) != 0 || b.p.Pending() != 10 {
		t.Fatalf("a paused port got %d, %d wait", len(b.got), b.p.Pending())
	}
	n.RunFor(1e6)
	if len(b.got) != 10 || b.p.Overflowed() != 15 || n.Stats().Overflowed != 15 {
		t.Errorf("got %d, overflowed %d", len(b.got), b.p.Overflowed())
	}
	c := newEnd(t, n, Config{RecvBuf: 4096}, addr6)
	d := newEnd(t, n, Config{}, addr7)
	send(d.p, flow(addr7, addr6), 0, 40, 1024)
	n.RunFor(1e6)
	if len(c.got) != 2 {
		t.Errorf("%d datagrams fit into 4 KiB", len(c.got))
	}
}

func TestInjectAndForeignSource(t *testing.T) {
	n := New(1)
	a := newEnd(t, n, Config{}, addrA)
	n.Inject(netip.AddrPortFrom(addrB, 1234), addrA, []byte("hello"), 42)
	n.RunFor(1000)
	if len(a.got) != 1 || string(a.got[0].Data) != "hello" || a.got[0].ID != 42 || a.got[0].Src.Port() != 1234 {
		t.Errorf("%+v", a.got)
	}
	send(a.p, flow(addrB, addrA), 0, 1, 16) // not its address
	send(a.p, flow(addrA, addrB), 0, 1, 16) // nobody there
	n.RunFor(1e6)
	if s := a.p.Stats(); len(a.got) != 1 || s.TxErrors != 1 || n.Stats().NoHost != 1 {
		t.Errorf("%d arrived, %+v, %+v", len(a.got), s, n.Stats())
	}
}

func TestDeadlines(t *testing.T) {
	n := New(1)
	p := n.NewPort(Config{})
	var at []int64
	n.Attach(p, func(now int64) int64 {
		at = append(at, now-startTime)
		if len(at) < 4 {
			return now + 10_000
		}
		return 0
	})
	if n.Run(func() bool { return false }, 1e9) {
		t.Error("Run said that false holds")
	}
	if fmt.Sprint(at) != "[0 10000 20000 30000]" {
		t.Errorf("turns at %v", at)
	}
	if n.Step() {
		t.Error("something is left to do")
	}
	// A deadline in the past does not stop the time.
	q := n.NewPort(Config{})
	n.Attach(q, func(now int64) int64 { return 1 })
	n.RunFor(1e5)
	if n.Stats().Turns > 110 {
		t.Errorf("%d turns in 100 us", n.Stats().Turns)
	}
}

// The same seed gives the same run, another seed another.
func TestDeterministic(t *testing.T) {
	run := func(seed uint64) uint64 {
		n := New(seed)
		h := fnv.New64a()
		n.SetDefault(Link{Loss: 0.1, Dup: 0.1, Reorder: 0.1, Corrupt: 0.1, Delay: 1000, Jitter: 1000})
		a := newEnd(t, n, Config{}, addrA)
		b := newEnd(t, n, Config{GRO: 0.5}, addrB)
		for i := range 20 {
			send(a.p, flow(addrA, addrB), 100*i, 100, 300)
			n.RunFor(1e5)
		}
		for _, d := range b.got {
			h.Write(d.Data)
			h.Write([]byte{byte(d.ID), byte(d.SegSize)})
		}
		fmt.Fprint(h, n.Stats(), n.Now())
		return h.Sum64()
	}
	first := run(1)
	if run(1) != first {
		t.Error("one seed, two runs")
	}
	if run(2) == first {
		t.Error("two seeds, one run")
	}
}

func TestVanishedMemoryAndClose(t *testing.T) {
	n := New(1)
	a := newEnd(t, n, Config{}, addrA)
	b := newEnd(t, n, Config{}, addrB)
	send(a.p, flow(addrA, addrB), 0, 10, 16)
	if err := b.p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.p.Close(); err != nil {
		t.Fatal(err)
	}
	n.RunFor(1e6)
	if n.Stats().NoHost != 10 || n.Buffers() != 0 {
		t.Errorf("%+v, %d buffers", n.Stats(), n.Buffers())
	}
	if _, err := b.p.AddLocal(addrB); !errors.Is(err, syscall.EBADF) {
		t.Errorf("closed port: %v", err)
	}
}

var _ port.Port = (*Port)(nil)

func benchmark(b *testing.B, l Link, segs, payload int, hooked bool) {
	n := New(1)
	n.SetDefault(l)
	pa, pb := n.NewPort(Config{}), n.NewPort(Config{GRO: 1})
	for p, a := range map[*Port]netip.Addr{pa: addrA, pb: addrB} {
		if _, err := p.AddLocal(a); err != nil {
			b.Fatal(err)
		}
	}
	rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 64)}
	n.Attach(pb, func(int64) int64 { pb.Recv(&rx); return 0 })
	if hooked {
		n.Filter(func(e *Event) Verdict { return Pass })
	}
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 64})
	f := flow(addrA, addrB)
	data := make([]byte, payload)
	for range segs {
		roce.BTH(tx.Begin(f, roce.BTHLen, payload)).Put(roce.OpRCSendMiddle, false, 0, 0xFFFF, 7, false, 1)
		_ = tx.Payload(data)
		tx.End()
	}
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += segs {
		pa.Send(tx)
		n.RunFor(20_000)
	}
}

// One operation is one datagram.
func BenchmarkSmall(b *testing.B)  { benchmark(b, Link{Delay: 2000}, 32, 64, false) }
func BenchmarkHooked(b *testing.B) { benchmark(b, Link{Delay: 2000}, 32, 64, true) }
func BenchmarkMTU(b *testing.B)    { benchmark(b, Link{Delay: 2000}, 15, 4096, false) }

func BenchmarkBad(b *testing.B) {
	benchmark(b, Link{Delay: 2000, Jitter: 1000, Loss: 0.01, Dup: 0.01, Reorder: 0.01, Corrupt: 0.01}, 32, 64, false)
}
