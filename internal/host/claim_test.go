package host

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// A table without a system: members live as its words say.
type table struct {
	d    dir
	gens [Slots]uint32
	dead map[int]bool // nobody has told the directory yet
}

func newTable() *table {
	return &table{d: dir{make([]uint64, sharedBytes/8)}, dead: map[int]bool{}}
}

// member gives a slot to somebody new.
func (t *table) member(slot int) *claims {
	t.gens[slot]++
	delete(t.dead, slot)
	t.d.store(slotAt(slot, slotState), slotWord(t.gens[slot], slotLive))
	t.d.store(slotAt(slot, slotFlags), uint64(t.gens[slot])<<32|flagMADs)
	return &claims{
		d: t.d, slot: slot, gen: t.gens[slot], step: func(string) {}, gone: func(slot int) bool { return t.dead[slot] }, pid: func(int) int { return 0 },
		held: map[portKey]*claim{},
	}
}

// held is a claim in the model.
type held struct {
	slot                 int
	space                uint16
	at                   netip.AddrPort
	reuse, only, listens bool
	c                    *claims
	h                    *claim
}

func (h *held) afOnly() bool { return h.only || h.at.Addr().Is4() }

// model is what librdmacm's ports do, among all members: the rules of the kernel's rdma_cm
// (cma_port_is_unique, cma_check_port) as rdmacm has them for one process.
func model(list []*held, n *held, unused bool) (conflict, wild bool) {
	for _, o := range list {
		if o == n || o.space != n.space || o.at.Port() != n.at.Port() {
			continue
		}
		if unused {
			conflict = true
		}
		if n.reuse && o.reuse {
			continue
		}
		a, b := n.at.Addr(), o.at.Addr()
		if a.Is4() != b.Is4() && n.afOnly() && o.afOnly() {
			continue
		}
		if a.IsUnspecified() || b.IsUnspecified() {
			conflict, wild = true, true
		} else if a == b {
			conflict = true
		}
	}
	return conflict, wild
}

// Claims of several members, who die, against the model of one list.
func TestClaimsAgainstModel(t *testing.T) {
	addrs := []netip.Addr{
		netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("0.0.0.0"),
		netip.MustParseAddr("::"), netip.MustParseAddr("fe80::1"), netip.MustParseAddr("2001:db8::1"),
	}
	shared := newTable() // making one takes longer than the test
	rapid.Check(t, func(t *rapid.T) {
		tab := shared
		clear(tab.d.w)
		clear(tab.dead)
		var members [Slots]*claims
		slots := []int{1, 2, 77, 127}
		for _, s := range slots {
			members[s] = tab.member(s)
		}
		var list []*held
		remove := func(dead func(*held) bool) {
			var rest []*held
			for _, h := range list {
				if !dead(h) {
					rest = append(rest, h)
				}
			}
			list = rest
		}
		pickHeld := func(t *rapid.T) *held {
			if len(list) == 0 {
				t.Skip()
			}
			return rapid.SampledFrom(list).Draw(t, "claim")
		}
		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				n := &held{
					slot: rapid.SampledFrom(slots).Draw(t, "slot"), space: rapid.SampledFrom([]uint16{0x106, 0x111}).Draw(t, "space"),
					at:    netip.AddrPortFrom(rapid.SampledFrom(addrs).Draw(t, "addr"), rapid.Uint16Range(7, 8).Draw(t, "port")),
					reuse: rapid.Bool().Draw(t, "reuse"), only: rapid.Bool().Draw(t, "only"),
				}
				if tab.dead[n.slot] {
					t.Skip()
				}
				unused := rapid.IntRange(0, 9).Draw(t, "unused") == 0
				var flags driver.ClaimFlags
				if n.reuse {
					flags |= driver.ClaimReuse
				}
				if n.only {
					flags |= driver.ClaimAFOnly
				}
				if unused {
					flags |= driver.ClaimUnused
				}
				conflict, wild := model(list, n, unused)
				n.c = members[n.slot]
				var err error
				n.h, err = n.c.claim(n.space, n.at, flags)
				if conflict != (err != nil) {
					t.Fatalf("%v by %d: conflict %v, got %v", n.at, n.slot, conflict, err)
				}
				if err != nil {
					if !errors.Is(err, syscall.EADDRINUSE) || wild && !unused && !errors.Is(err, syscall.EADDRNOTAVAIL) && onlyWild(list, n) {
						t.Fatalf("%v: %v, wild %v", n.at, err, wild)
					}
					return
				}
				list = append(list, n)
			},
			"listen": func(t *rapid.T) {
				h := pickHeld(t)
				alone := *h
				alone.reuse = false
				conflict := false
				if h.reuse {
					rest := list
					list = nil
					for _, o := range rest {
						if o != h {
							list = append(list, o)
						}
					}
					conflict, _ = model(list, &alone, false)
					list = rest
				}
				n, err := h.c.listen(h.h, true, h.at)
				h.h = n
				if conflict != (err != nil) {
					t.Fatalf("%v listens: conflict %v, got %v", h.at, conflict, err)
				}
				if err == nil {
					h.listens, h.reuse = true, false
				}
			},
			"release": func(t *rapid.T) {
				h := pickHeld(t)
				h.c.mu.Lock()
				h.c.drop(h.h)
				h.c.mu.Unlock()
				remove(func(o *held) bool { return o == h })
			},
			"die": func(t *rapid.T) {
				slot := rapid.SampledFrom(slots).Draw(t, "slot")
				remove(func(o *held) bool { return o.slot == slot })
				if rapid.Bool().Draw(t, "told") {
					members[slot] = tab.member(slot)
				} else {
					tab.dead[slot] = true
				}
			},
			"": func(t *rapid.T) {
				// Requests find who listens: its address before a wildcard.
				for _, space := range []uint16{0x106, 0x111} {
					for port := uint16(7); port <= 8; port++ {
						for _, a := range addrs {
							if a.IsUnspecified() {
								continue
							}
							want := 0
							for _, h := range list {
								if !h.listens || h.space != space || h.at.Port() != port {
									continue
								}
								if h.at.Addr() == a {
									want = h.slot
									break
								}
								if h.at.Addr().IsUnspecified() && (h.at.Addr().Is4() == a.Is4() || !h.afOnly()) {
									want = h.slot
								}
							}
							var got int
							var ok bool
							for _, s := range slots {
								if !tab.dead[s] {
									if got, ok = members[s].listener(space, port, a); ok && tab.dead[got] {
										ok = false
									}
									break
								}
							}
							if (want != 0) != ok && !anyDead(tab) || ok && got != want && !anyDead(tab) {
								t.Fatalf("%#x %v:%d: slot %d, %v, want %d", space, a, port, got, ok, want)
							}
						}
					}
				}
			},
		})
	})
}

func anyDead(t *table) bool { return len(t.dead) > 0 }

// onlyWild reports whether all that conflict do so by a wildcard.
func onlyWild(list []*held, n *held) bool {
	for _, o := range list {
		if c, w := model([]*held{o}, n, false); c && !w {
			return false
		}
	}
	return true
}

// Of many that claim a port at the same time exactly one gets it.
func TestClaimsAtOnce(t *testing.T) {
	tab := newTable()
	const n = 8
	var members [n]*claims
	for i := range members {
		members[i] = tab.member(i + 1)
	}
	rounds := 2000
	if testing.Short() {
		rounds = 200
	}
	for round := range rounds {
		at := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(round+1))
		var got [n]*claim
		var wg sync.WaitGroup
		begin := make(chan struct{})
		for i := range n {
			wg.Go(func() {
				<-begin
				h, err := members[i].claim(0x106, at, 0)
				if err == nil {
					got[i] = h
				} else if !errors.Is(err, syscall.EADDRINUSE) {
					t.Error(err)
				}
			})
		}
		close(begin)
		wg.Wait()
		won := 0
		for i, h := range got {
			if h != nil {
				won++
				members[i].drop(h)
			}
		}
		if won != 1 {
			t.Fatalf("round %d: %d got the port", round, won)
		}
	}
}

// A member may stop or die at each step of a claim; another one gets the port if it is not
// held, and never both.
func TestClaimStoppedAtEachStep(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.1:7471")
	for _, step := range []string{"port:taken", "port:filled", "port:published", "port:checked", "port:held"} {
		for _, dies := range []bool{false, true} {
			for _, low := range []bool{false, true} {
				t.Run(fmt.Sprint(step, dies, low), func(t *testing.T) {
					tab := newTable()
					a, b := tab.member(1), tab.member(2)
					if low { // b's entry comes before a's
						h, err := b.claim(0x106, netip.MustParseAddrPort("10.0.0.2:7471"), 0)
						if err != nil {
							t.Fatal(err)
						}
						a.step = func(s string) {
							if s == "port:taken" && h != nil {
								b.drop(h)
								h = nil
							}
						}
					}
					stopped, goOn, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
					var first error
					inner := a.step
					once := false
					a.step = func(s string) {
						inner(s)
						if s == step && !once {
							once = true
							close(stopped)
							<-goOn
						}
					}
					go func() {
						defer close(done)
						_, first = a.claim(0x106, at, 0)
					}()
					<-stopped
					if dies {
						tab.dead[1] = true
					}
					_, err := b.claim(0x106, at, 0)
					if dies && err != nil {
						t.Errorf("the dead one keeps the port: %v", err)
					}
					if dies {
						tab.d.store(slotAt(1, slotState), slotWord(1, slotFree))
						if _, err := tab.member(3).claim(0x106, at, 0); err == nil {
							t.Error("both have it")
						}
					}
					close(goOn)
					<-done
					if !dies && (first == nil) == (err == nil) && err == nil {
						t.Errorf("first %v, second %v", first, err)
					}
					if step == "port:held" && !dies && (first != nil || err == nil) {
						t.Errorf("it was held: first %v, second %v", first, err)
					}
				})
			}
		}
	}
}

// A port's window is full: an error, and what others hold is still seen.
func TestClaimWindowFull(t *testing.T) {
	tab := newTable()
	a, b := tab.member(1), tab.member(2)
	var last error
	n := 0
	for ; n < 2*claimWindow; n++ {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 7)
		if _, last = a.claim(0x106, at, 0); last != nil {
			break
		}
	}
	if n != claimWindow || !errors.Is(last, syscall.ENOMEM) {
		t.Errorf("%d claims, then %v", n, last)
	}
	if _, err := b.claim(0x106, netip.MustParseAddrPort("10.0.0.1:8"), 0); err != nil {
		t.Error(err)
	}
	if _, err := b.claim(0x111, netip.MustParseAddrPort("10.0.0.1:7"), 0); err != nil {
		t.Error(err)
	}
}

// All ports of a space can be claimed, and in the other spaces too as far as a table goes.
func TestClaimAllPorts(t *testing.T) {
	tab := newTable()
	a := tab.member(1)
	step := 1
	if testing.Short() {
		step = 31
	}
	for port := 1; port <= 65535; port += step {
		if _, err := a.claim(0x106, netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(port)), 0); err != nil {
			t.Fatal(port, err)
		}
	}
	for port := 32768; port <= 60999; port += step {
		if _, err := a.claim(0x111, netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), uint16(port)), 0); err != nil {
			t.Fatal(port, err)
		}
	}
}

func BenchmarkClaim(b *testing.B) {
	tab := newTable()
	a := tab.member(1)
	at := netip.MustParseAddrPort("10.0.0.1:7471")
	for b.Loop() {
		h, err := a.claim(0x106, at, 0)
		if err != nil {
			b.Fatal(err)
		}
		a.drop(h)
	}
}
