package host

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/wire/mad"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// someMAD is a management datagram with random IDs.
func someMAD(r *rand.Rand) []byte {
	b := make([]byte, mad.Len)
	p := mad.Put(b, mad.AttrREQ+mad.AttrID(r.IntN(11)), r.Uint64())
	for i := range 16 {
		p[i] = byte(r.Uint32())
	}
	if r.IntN(2) == 0 {
		binary.BigEndian.PutUint64(p[8:], mad.ServiceID(mad.PortSpaceTCP, uint16(r.IntN(3)+100)))
	}
	return b
}

// useAll calls whatever reads the directory.
func useAll(r *rand.Rand, tab *table, c *claims) {
	addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(3))})
	at := netip.AddrPortFrom(addr, uint16(r.IntN(3)+100))
	if h, err := c.claim(mad.PortSpaceTCP, at, driver.ClaimFlags(r.IntN(8))); err == nil {
		h, _ = c.listen(h, r.IntN(2) == 0, at)
		if r.IntN(2) == 0 {
			c.mu.Lock()
			c.drop(h)
			c.mu.Unlock()
		}
	}
	if slot, ok := c.route(addr, addr, someMAD(r)); ok && (slot < 1 || slot >= Slots) {
		panic("routed to a slot that is none")
	}
	p := pool{d: tab.d, self: owner(c.slot, c.gen), step: c.step}
	if i, ok := p.get(); ok {
		if i < 0 || i >= PoolBufs {
			panic("no buffer")
		}
		p.pass(i, r.IntN(Slots))
		p.take(i, r.IntN(Slots))
		p.orphans()
		p.put(i)
	}
	rec := driver.ConnRecord{Local: addr, Remote: addr, LocalID: r.Uint32(), RemoteID: r.Uint32()}
	tab.d.index(c.slot, c.gen, &rec)
	tab.d.lookup(addr, rec.RemoteID)
	tab.d.unindex(c.slot, c.gen, &rec)
}

// scribble writes what may be: noise, or words that are nearly right.
func scribble(r *rand.Rand, d dir, i int) {
	switch r.IntN(5) {
	case 0:
		d.store(i, r.Uint64())
	case 1:
		d.store(i, ^uint64(0))
	case 2:
		d.store(i, d.load(r.IntN(len(d.w))))
	case 3:
		d.store(i, d.load(i)^1<<r.IntN(64))
	default:
		d.store(i, claimWord(r.IntN(256), uint32(r.IntN(3)), r.Uint32(), uint64(r.IntN(16))))
	}
}

// Whatever words stand in the directory: all that reads it comes to an end, without panic.
func FuzzDirectory(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(seed)
	}
	tab := newTable()
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 1))
		clear(tab.d.w)
		c := tab.member(5)
		for range 1 << r.IntN(18) {
			scribble(r, tab.d, r.IntN(len(tab.d.w)))
		}
		if r.IntN(2) == 0 { // all that concerns the ports in use
			for port := range uint16(3) {
				home := claimHome(mad.PortSpaceTCP, port+100)
				for n := range claimWindow * claimWords {
					scribble(r, tab.d, claimsAt+(home*claimWords+n)%(claimsLen*claimWords))
				}
			}
			for slot := range Slots {
				tab.d.store(slotAt(slot, slotState), slotWord(uint32(r.IntN(3)), r.IntN(3)))
			}
		}
		for range 50 {
			useAll(r, tab, c)
		}
	})
}

// Connection records are input too.
func TestGarbageRecords(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	w := make(connWordsOf, maxConns*connWords)
	for i := range w {
		w[i] = r.Uint64()
		if i < maxConns {
			w[i] %= 4
		}
	}
	for _, n := range []uint64{0, 1, maxConns, maxConns + 1, ^uint64(0)} {
		list, garbage := w.list(9, n)
		if uint64(len(list))+garbage > min(n, maxConns) {
			t.Errorf("%d and %d of %d", len(list), garbage, n)
		}
		for _, c := range list {
			if c.LocalID>>CommBits != 9 || c.LocalQPN >= 1<<24 || c.RemoteQPN >= 1<<24 || c.LocalPSN >= 1<<24 || !c.Local.IsValid() || !c.Remote.IsValid() {
				t.Fatalf("%+v", c)
			}
		}
	}
}

// One of the members writes garbage into everything that is shared while the others work.
func TestGarbageWhileAtWork(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	cfg := testConfig(t)
	cfg.Heartbeat, cfg.Stale = time.Millisecond, 10*time.Millisecond
	var deaths atomic.Int64
	cfg.OnDeath = func(Death) { deaths.Add(1) }
	var list []*Group
	for range 4 {
		g, err := Join(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, g)
	}
	bad := list[0]
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		r := rand.New(rand.NewPCG(seed, 3))
		for {
			select {
			case <-stop:
				return
			default:
			}
			for range 100 {
				scribble(r, bad.d, r.IntN(len(bad.d.w)))
			}
			scribble(r, bad.d, r.IntN(hdrDeaths+1)) // the header
			scribble(r, bad.d, slotAt(r.IntN(Slots), r.IntN(slotWords)))
			bad.d.store(slotAt(r.IntN(Slots), slotState), slotWord(r.Uint32(), r.IntN(3)))
		}
	})
	for n, g := range list[1:] {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(10+n)))
			var b [64]byte
			for i := range 300 {
				if addr := netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + n)}); i%50 == 0 {
					if s, err := g.Sockets(addr, makeSockets(Slots)); err == nil {
						closeFDs([]int{s.Own, s.Control})
					}
					g.Addrs()
					_ = g.Drop(addr)
				}
				p, err := g.ClaimPort(mad.PortSpaceTCP, netip.AddrPortFrom(lo4, uint16(100+r.IntN(3))), driver.ClaimFlags(r.IntN(8)))
				if err == nil {
					_ = p.Listen(true)
					p.Release()
				}
				bits, _ := g.CommIDs()
				h, err := g.RecordConn(&driver.ConnRecord{Local: lo4, Remote: lo4, LocalID: bits | 5, RemoteID: r.Uint32()})
				if err != nil {
					t.Error(err)
					return
				}
				h.Release()
				_ = g.Send(r.IntN(Slots), b[:])
				_, _ = g.Recv(b[:])
				g.Route(lo4, lo4, someMAD(r))
				g.Members()
				g.Steward()
				if i, ok := g.PoolGet(); ok {
					g.PoolBytes(i)[0] = 1
					g.PoolPass(i, r.IntN(Slots))
					g.PoolPut(i)
				}
				if s, err := g.Sockets(lo4, makeSockets(1)); err == nil {
					closeFDs([]int{s.Own, s.Control})
				}
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		time.AfterFunc(300*time.Millisecond, func() { close(stop) })
		wg.Wait()
		for _, g := range list {
			g.Close()
		}
	}()
	select {
	case <-done:
	case <-time.After(childPatience):
		t.Fatal("it hangs")
	}
	t.Logf("%d burials", deaths.Load())
}

// Who joins a directory that makes no sense is told so, and does no harm.
func TestJoinGarbage(t *testing.T) {
	cfg := testConfig(t)
	for _, c := range []struct {
		word int
		want error
	}{{hdrMagic, ErrGarbage}, {hdrLayout, ErrVersion}, {hdrSize, ErrVersion}} {
		g := mustJoin(t, cfg)
		g.d.store(c.word, 77)
		if _, err := Join(t.Context(), cfg); !errors.Is(err, c.want) {
			t.Errorf("word %d: %v, want %v", c.word, err, c.want)
		}
		g.Close()
	}
	// Slots that all seem taken, or of nobody.
	g := mustJoin(t, cfg)
	for slot := 2; slot < Slots; slot++ {
		g.d.store(slotAt(slot, slotState), slotWord(uint32(slot), []int{slotLive, slotDead, 7}[slot%3]))
	}
	other := mustJoin(t, cfg) // the steward buries those
	eventually(t, "two are left", func() bool { return len(g.Members()) == 2 && len(other.Members()) == 2 })
}

// A directory or keeper with other things in it than what belongs there.
func TestStrangeDescriptors(t *testing.T) {
	cfg := testConfig(t)
	g := mustJoin(t, cfg)
	// Another address's keeper has garbage in front.
	keepers, err := g.keepers()
	if err != nil {
		t.Fatal(err)
	}
	defer closeFDs(keepers)
	if _, err := unix.Write(keepers[0], []byte("what?")); err != nil {
		t.Fatal(err)
	}
	bad := keptMessage(lo4, Slots)
	if err := sendFDs(keepers[1], bad, 0, 1); err != nil { // 2 descriptors, not 128, and no sockets
		t.Fatal(err)
	}
	if _, err := g.Sockets(lo4, makeSockets(1)); !errors.Is(err, ErrGarbage) {
		t.Errorf("%v", err)
	}
	s, err := g.Sockets(netip.MustParseAddr("127.0.0.9"), makeSockets(1))
	if err != nil {
		t.Fatal(err)
	}
	closeFD(s.Control)
	if got := g.Addrs(); len(got) != 2 {
		t.Errorf("%v", got)
	}
}
