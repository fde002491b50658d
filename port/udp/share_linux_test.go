package udp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/host"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// fakeHost is a group of members that are all in this process.
type fakeHost struct {
	making  sync.Mutex
	mu      sync.Mutex
	socks   map[netip.Addr][]int
	users   map[netip.Addr]map[int]bool
	members map[int]*fakeGroup
	steward int
	pool    [][]byte
	owner   []int
	route   int // slot that management datagrams go to
}

func newFakeHost(t testing.TB, bufs int) *fakeHost {
	h := &fakeHost{socks: make(map[netip.Addr][]int), users: make(map[netip.Addr]map[int]bool), members: make(map[int]*fakeGroup), owner: make([]int, bufs)}
	for range bufs {
		h.pool = append(h.pool, make([]byte, host.PoolBuf))
	}
	t.Cleanup(func() {
		for _, fds := range h.socks {
			closeAll(fds)
		}
	})
	return h
}

// member adds one. The first is the steward.
func (h *fakeHost) member(t testing.TB, slot int) *fakeGroup {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(pair[:]) })
	g := &fakeGroup{h: h, slot: slot, box: pair}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.members[slot] = g
	if h.steward == 0 {
		h.steward = slot
	}
	return g
}

func (h *fakeHost) appoint(slot int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.steward = slot
}

type fakeGroup struct {
	h    *fakeHost
	slot int
	box  [2]int // a message written to 0 is read from 1
}

func (g *fakeGroup) Slot() int { return g.slot }

func (g *fakeGroup) Numbers() (bits, mask ib.QPN) {
	return ib.QPN(g.slot) << slotShift, 0x7F << slotShift
}

func (g *fakeGroup) Sockets(a netip.Addr, mk host.Make) (s host.Sockets, err error) {
	h, zoned := g.h, a
	a = a.WithZone("")
	h.making.Lock()
	defer h.making.Unlock()
	h.mu.Lock()
	fds := h.socks[a]
	h.mu.Unlock()
	if fds == nil {
		if mk == nil {
			return s, unix.ENOENT
		}
		if fds, err = mk(zoned); err != nil {
			return s, err
		}
	}
	if mk != nil {
		h.mu.Lock()
		h.socks[a] = fds
		if h.users[a] == nil {
			h.users[a] = make(map[int]bool)
		}
		h.users[a][g.slot] = true
		h.mu.Unlock()
	}
	s.Own = -1
	if len(fds) == slotCount {
		s.Own, _ = unix.FcntlInt(uintptr(fds[g.slot]), unix.F_DUPFD_CLOEXEC, 0)
	}
	s.Control, err = unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0)
	return s, err
}

func (g *fakeGroup) Drop(a netip.Addr) error {
	g.h.mu.Lock()
	defer g.h.mu.Unlock()
	if delete(g.h.users[a], g.slot); len(g.h.users[a]) == 0 {
		closeAll(g.h.socks[a])
		delete(g.h.socks, a)
	}
	return nil
}

func (g *fakeGroup) Addrs() (list []netip.Addr) {
	g.h.mu.Lock()
	defer g.h.mu.Unlock()
	for a := range g.h.socks {
		list = append(list, a)
	}
	return list
}

func (g *fakeGroup) Control(a netip.Addr) (int, error) {
	g.h.mu.Lock()
	defer g.h.mu.Unlock()
	if fds := g.h.socks[a]; fds != nil {
		return unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0)
	}
	return -1, unix.ENOENT
}

func (g *fakeGroup) Steward() bool {
	g.h.mu.Lock()
	defer g.h.mu.Unlock()
	return g.h.steward == g.slot
}

func (g *fakeGroup) Mailbox() int { return g.box[1] }

func (g *fakeGroup) to(slot int) *fakeGroup {
	g.h.mu.Lock()
	defer g.h.mu.Unlock()
	return g.h.members[slot]
}

func (g *fakeGroup) Send(slot int, msg []byte) error {
	o := g.to(slot)
	if o == nil {
		return unix.ESRCH
	}
	return unix.Send(o.box[0], msg, unix.MSG_DONTWAIT)
}

func (g *fakeGroup) Recv(b []byte) (int, error) {
	n, _, err := unix.Recvfrom(g.box[1], b, unix.MSG_DONTWAIT)
	return n, err
}

func (g *fakeGroup) SlotOf(n ib.QPN) (int, bool) {
	s := int(n >> slotShift)
	return s, g.to(s) != nil
}

func (g *fakeGroup) Route(netip.Addr, netip.Addr, []byte) (int, bool) {
	g.h.mu.Lock()
	defer g.h.mu.Unlock()
	return g.h.route, g.h.route != 0
}

func (g *fakeGroup) PoolGet() (int, bool) {
	g.h.mu.Lock()
	defer g.h.mu.Unlock()
	for i, o := range g.h.owner {
		if o == 0 {
			g.h.owner[i] = g.slot
			return i, true
		}
	}
	return 0, false
}

func (g *fakeGroup) PoolBytes(b int) []byte {
	if uint(b) >= uint(len(g.h.pool)) {
		return nil
	}
	return g.h.pool[b]
}

func (g *fakeGroup) PoolPass(b, slot int) bool {
	if !g.PoolMine(b) || g.to(slot) == nil {
		return false
	}
	g.h.mu.Lock()
	defer g.h.mu.Unlock()
	g.h.owner[b] = slot
	return true
}

func (g *fakeGroup) PoolTake(b, slot int) {
	g.h.mu.Lock()
	defer g.h.mu.Unlock()
	if g.h.owner[b] == slot {
		g.h.owner[b] = 0
	}
}

func (g *fakeGroup) PoolMine(b int) bool {
	g.h.mu.Lock()
	defer g.h.mu.Unlock()
	return uint(b) < uint(len(g.h.owner)) && g.h.owner[b] == g.slot
}

func (g *fakeGroup) PoolPut(b int) {
	if g.PoolMine(b) {
		g.h.mu.Lock()
		defer g.h.mu.Unlock()
		g.h.owner[b] = 0
	}
}

// left counts the buffers that are not free.
func (h *fakeHost) left() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range h.owner {
		if o != 0 {
			n++
		}
	}
	return n
}

// shared are the addresses and ports of several members.
type shared struct {
	h     *fakeHost
	addr  netip.Addr
	ports map[int]*Port
	index map[int]int
}

func newShared(t testing.TB, addr netip.Addr, bufs int, unsteered bool, slots ...int) *shared {
	t.Helper()
	s := &shared{h: newFakeHost(t, bufs), addr: addr, ports: make(map[int]*Port), index: make(map[int]int)}
	for _, k := range slots {
		s.ports[k] = open(t, Config{Share: s.h.member(t, k), Unsteered: unsteered})
		var err error
		if s.index[k], err = s.ports[k].AddLocal(addr); err != nil {
			if addr.Is6() {
				t.Skip(err)
			}
			t.Fatal(err)
		}
	}
	for _, k := range slots {
		s.settled(t, k)
	}
	return s
}

// settled waits until the port reads what it has to.
func (s *shared) settled(t testing.TB, slot int) {
	t.Helper()
	p := s.ports[slot]
	want := (&fakeGroup{h: s.h, slot: slot}).Steward()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		got := true
		for _, k := range *p.socks.Load() {
			got = got && (k.dropped || k.control.watched == want)
		}
		p.mu.Unlock()
		if got {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("slot %d does not read as it should", slot)
		}
	}
}

// toQP puts a packet for a queue pair into a batch.
func toQP(t testing.TB, tx *pkt.Tx, f *pkt.Flow, n ib.QPN, number int, payload []byte) {
	t.Helper()
	h := tx.Begin(f, roce.BTHLen, len(payload))
	roce.BTH(h).Put(roce.OpUDSendOnly, false, 0, uint16(ib.PKeyDefault), uint32(n), false, 0)
	binary.BigEndian.PutUint32(h[8:], uint32(number))
	if err := tx.Payload(payload); err != nil {
		t.Fatal(err)
	}
	tx.End()
}

// receiver receives for all ports and hands on what is for others, as an engine does.
func (s *shared) receive(t testing.TB, want map[int]int, see func(slot int, d *pkt.Datagram, seg []byte)) {
	t.Helper()
	rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
	left := 0
	for _, n := range want {
		left += n
	}
	for end := time.Now().Add(10 * time.Second); left > 0; {
		for slot, p := range s.ports {
			p.Recv(&rx)
			_, mask := p.Numbers()
			bits, _ := p.Numbers()
			for i := range rx.Dgrams {
				d := &rx.Dgrams[i]
				for b := d.Data; len(b) > 0; {
					seg := b[:min(d.SegSize, len(b))]
					b = b[len(seg):]
					n := ib.QPN(seg[5])<<16 | ib.QPN(seg[6])<<8 | ib.QPN(seg[7])
					if n&mask != bits && n != ib.QPNGSI {
						if d.Relayed {
							t.Fatalf("slot %d got a packet for %#x from another process", slot, n)
						}
						o := *d
						o.Data, o.SegSize = seg, len(seg)
						if got := p.Forward(n, &o); got != port.Handed {
							t.Fatalf("forwarding to %#x: %v", n, got)
						}
						continue
					}
					see(slot, d, seg)
					want[slot]--
					left--
				}
			}
			p.Flush()
		}
		if time.Now().After(end) {
			t.Fatalf("still missing: %v", want)
		}
	}
}

// Ports that share an address get what is for them and nothing else, of whatever length, from
// one another and from themselves, with where it came from and its traffic class; with the
// kernel's filter no process sees what is another's.
func TestSharedAddress(t *testing.T) {
	for _, way := range []string{"steered", "handed", "relayed"} { // relayed: all that is sent takes the socket, as from outside
		for _, addr := range []netip.Addr{freeLoopback(t), netip.IPv6Loopback()} {
			for _, bufs := range []int{256, 0} {
				t.Run(fmt.Sprintf("%v/%s/bufs=%d", addr, way, bufs), func(t *testing.T) {
					s := newShared(t, addr, bufs, way != "steered", 1, 2, 77, 127)
					for _, p := range s.ports {
						p.handing.Store(way == "handed")
					}
					want, number := map[int]int{}, 0
					sent := map[int][]byte{}
					for from, p := range s.ports {
						for to := range s.ports {
							tx := pkt.NewTx(pkt.TxCaps{MaxSegs: p.Caps().MaxSegs})
							f := flow(addr, addr, s.index[from])
							f.TClass, f.HopLimit = 0x20, 61
							for _, size := range []int{0, 100, 1500, 1500, 1500, 4096, 4096, 4096, 4096} {
								b := make([]byte, size)
								for i := range b {
									b[i] = byte(rand.Uint32())
								}
								toQP(t, tx, f, ib.QPN(to)<<slotShift|ib.QPN(rand.IntN(1<<slotShift)), number, b)
								sent[number] = b
								want[to]++
								number++
							}
							p.Send(tx)
							tx.Reset()
						}
					}
					s.receive(t, want, func(slot int, d *pkt.Datagram, seg []byte) {
						k := psnOf(seg)
						if n := len(sent[k]); !bytes.Equal(seg[roce.BTHLen:][:n], sent[k]) || d.TOS != 0x20 || d.TTL != 61 ||
							d.Src != netip.AddrPortFrom(addr, roce.Port) || d.Dst != addr || d.Local != s.index[slot] {
							t.Fatalf("slot %d: packet %d of %d bytes, %+v", slot, k, len(seg), d)
						}
						delete(sent, k)
					})
					if len(sent) > 0 {
						t.Errorf("%d packets came to the wrong place", len(sent))
					}
					var relayed uint64
					for slot, p := range s.ports {
						st := p.Stats()
						if st.RxGarbage+st.RelayLost+st.RxTrunc != 0 || slot != 1 && st.Relayed != 0 {
							t.Errorf("slot %d: %+v", slot, st)
						}
						relayed += st.Relayed
					}
					// What three send to themselves takes the socket, at most nine datagrams each.
					own := uint64(0)
					if way == "handed" {
						own = 3 * 9
					}
					if way == "relayed" && bufs > 0 && relayed == 0 || way != "relayed" && bufs > 0 && relayed > own {
						t.Errorf("%d datagrams were relayed", relayed)
					}
					for _, p := range s.ports {
						_ = p.Close()
					}
					if n := s.h.left(); n != 0 {
						t.Errorf("%d buffers of the pool are left", n)
					}
				})
			}
		}
	}
}

// Queue pair 1 is read by the steward, also on addresses that it does not use; it hands on
// what is not its own. Another steward goes on where the first stopped.
func TestControlSocket(t *testing.T) {
	for _, unsteered := range []bool{false, true} {
		t.Run(fmt.Sprintf("unsteered=%v", unsteered), func(t *testing.T) {
			s := newShared(t, freeLoopback(t), 64, unsteered, 3, 4)
			other := freeLoopback(t)
			if _, err := s.ports[4].AddLocal(other); err != nil {
				t.Fatal(err)
			}
			s.ports[3].Look()
			for _, steward := range []int{3, 4, 3} {
				s.h.appoint(steward)
				for _, p := range s.ports {
					p.Look()
				}
				for k := range s.ports {
					s.settled(t, k)
				}
				for _, route := range []int{3, 4, 0} {
					s.h.mu.Lock()
					s.h.route = route
					s.h.mu.Unlock()
					for _, to := range []netip.Addr{s.addr, other} {
						if to == other && (route == 3 && steward == 4) {
							continue // has it not open
						}
						from, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
						if err != nil {
							t.Fatal(err)
						}
						msg := make([]byte, roce.BTHLen+4)
						msg[7] = 1
						err = unix.Sendto(from, msg, 0, sockaddr(to, 0, roce.Port))
						_ = unix.Close(from)
						if err != nil {
							t.Fatal(err)
						}
						rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
						seen := 0
						for end := time.Now().Add(10 * time.Second); ; {
							for slot, p := range s.ports {
								p.Recv(&rx)
								for i := range rx.Dgrams {
									d := &rx.Dgrams[i]
									if d.Dst != to {
										t.Fatalf("%+v", d)
									}
									if !d.Relayed {
										if slot != steward {
											t.Fatalf("slot %d read slot 0", slot)
										}
										switch got := p.Management(d, nil); {
										case route == 0 && got != port.Nobody, route == steward && got != port.Ours,
											route != 0 && route != steward && got != port.Handed:
											t.Fatalf("steward %d, route %d: %v", steward, route, got)
										}
										seen |= 1
										p.Flush()
									} else if slot != route {
										t.Fatalf("slot %d got what is for %d", slot, route)
									} else {
										seen |= 2
									}
								}
							}
							if seen&1 != 0 && (route == 0 || route == steward || seen&2 != 0) {
								break
							}
							if time.Now().After(end) {
								t.Fatalf("steward %d, route %d, to %v: %b", steward, route, to, seen)
							}
						}
					}
				}
			}
		})
	}
}

// What does not fit into a mailbox waits, also while the sender sleeps, and nothing is lost.
func TestFullMailbox(t *testing.T) {
	s := newShared(t, freeLoopback(t), 256, false, 1, 2)
	const n = 115 // messages, more than a mailbox holds
	for i := range n {
		b := make([]byte, 1500+i)
		b[5], b[7] = 2<<1, 9
		binary.BigEndian.PutUint32(b[8:], uint32(i))
		d := &pkt.Datagram{Data: b, SegSize: len(b), Src: netip.AddrPortFrom(s.addr, 5), Dst: s.addr}
		if got := s.ports[1].Forward(2<<slotShift|9, d); got != port.Handed {
			t.Fatalf("message %d: %v", i, got)
		}
		s.ports[1].Flush()
	}
	if len(s.ports[1].share.dirty) == 0 {
		t.Fatal("the mailbox took everything: the test needs more")
	}
	rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
	next := 0
	for end := time.Now().Add(10 * time.Second); next < n; {
		s.ports[2].Recv(&rx)
		for _, d := range rx.Dgrams {
			if psnOf(d.Data) != next || len(d.Data) != 1500+next || d.Src.Port() != 5 {
				t.Fatalf("datagram %d of %d bytes, want %d", psnOf(d.Data), len(d.Data), next)
			}
			next++
		}
		if s.ports[1].unsent.Load() {
			s.ports[1].Wait(-1) // ends though nothing comes
		}
		s.ports[1].Recv(&rx)
		if time.Now().After(end) {
			t.Fatalf("%d of %d", next, n)
		}
	}
}

// Whatever is in a mailbox, nothing but datagrams comes out of it.
func TestGarbageInMailbox(t *testing.T) {
	s := newShared(t, freeLoopback(t), 8, false, 1, 2)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
	g := s.h.members[1]
	for range 20_000 {
		m := make([]byte, rng.IntN(400))
		for i := range m {
			m[i] = byte(rng.Uint32())
		}
		if len(m) >= recordLen && rng.IntN(4) > 0 {
			m[0] = byte(1 + rng.IntN(4))
			order.PutUint32(m[4:], uint32(rng.IntN(500)))
			order.PutUint32(m[8:], uint32(rng.IntN(500)))
			if rng.IntN(2) > 0 {
				order.PutUint32(m[16:], uint32(rng.IntN(9)))
			}
			if rng.IntN(2) > 0 {
				a := s.addr.As16()
				copy(m[40:], a[:])
			}
		}
		if buf, ok := g.PoolGet(); ok && !g.PoolPass(buf, 2) {
			t.Fatal("not passed")
		}
		if err := g.Send(2, m); err != nil {
			t.Fatal(err)
		}
		s.ports[2].Recv(&rx)
		for more := true; more; more = s.ports[2].more.Load() {
			for _, d := range rx.Dgrams {
				if !d.Relayed || d.Dst != s.addr || d.SegSize < 1 || d.SegSize > len(d.Data) {
					t.Fatalf("%+v", d)
				}
			}
			if s.ports[2].Recv(&rx); len(rx.Dgrams) == 0 {
				break
			}
		}
	}
	if s.ports[2].Stats().RxGarbage == 0 {
		t.Error("no garbage was counted")
	}
}

// An address that the interface loses is given up by all, and can be had again.
func TestSharedAddressDropped(t *testing.T) {
	s := newShared(t, freeLoopback(t), 8, false, 1, 2)
	for _, p := range s.ports {
		p.DropLocal(s.addr)
	}
	alone := open(t, Config{})
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := alone.AddLocal(s.addr); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	if _, err := s.ports[1].AddLocal(s.addr); err == nil {
		t.Fatal("the address is another's now")
	}
	_ = alone.Close()
	for k, p := range s.ports {
		if i, err := p.AddLocal(s.addr); err != nil || i != s.index[k] {
			t.Fatalf("%d, %v", i, err)
		}
	}
	for k := range s.ports {
		s.settled(t, k)
	}
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
	toQP(t, tx, flow(s.addr, s.addr, s.index[1]), 2<<slotShift|5, 0, nil)
	s.ports[1].Send(tx)
	s.receive(t, map[int]int{2: 1}, func(int, *pkt.Datagram, []byte) {})
}

// An address that one process has given up while another has not noticed that it was lost, as
// when it returned at once, is the same for both.
func TestSharedAddressDroppedByOne(t *testing.T) {
	s := newShared(t, freeLoopback(t), 8, false, 1, 2)
	s.ports[1].DropLocal(s.addr)
	if i, err := s.ports[1].AddLocal(s.addr); err != nil || i != s.index[1] {
		t.Fatalf("%d, %v", i, err)
	}
	s.settled(t, 1)
	for from, to := range map[int]int{1: 2, 2: 1} {
		tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
		toQP(t, tx, flow(s.addr, s.addr, s.index[from]), ib.QPN(to)<<slotShift|5, 0, nil)
		s.ports[from].Send(tx)
		s.receive(t, map[int]int{to: 1}, func(int, *pkt.Datagram, []byte) {})
	}
}

// A sleeper wakes for its own socket, its mailbox and, if it is the steward, slot 0.
func TestSharedWait(t *testing.T) {
	bothWays(t, sharedWait)
}

func sharedWait(t *testing.T, noEpoll bool) {
	s := newShared(t, freeLoopback(t), 8, false, 1, 2)
	s.ports[1].wait.noEpoll = noEpoll
	rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
	for name, wake := range map[string]func(){
		"own": func() {
			tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
			toQP(t, tx, flow(s.addr, s.addr, s.index[2]), 1<<slotShift|5, 0, nil)
			s.ports[2].Send(tx)
		},
		"mailbox": func() {
			d := &pkt.Datagram{Data: make([]byte, 20), SegSize: 20, Src: netip.AddrPortFrom(s.addr, 5), Dst: s.addr}
			s.ports[2].Forward(1<<slotShift, d)
			s.ports[2].Flush()
		},
		"control": func() {
			tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
			toQP(t, tx, flow(s.addr, s.addr, s.index[2]), ib.QPNGSI, 0, nil)
			s.ports[2].Send(tx)
		},
	} {
		done := make(chan int)
		go func() {
			for range 1000 {
				s.ports[1].Wait(10 * time.Second)
				if n := s.ports[1].Recv(&rx); n > 0 {
					done <- n
					return
				}
			}
			done <- 0
		}()
		wake()
		if n := <-done; n != 1 {
			t.Errorf("%s: %d datagrams", name, n)
		}
	}
}

// A message with buffers of the pool that cannot be sent loses none of them, nor does one in which something else
// makes no sense.
func TestPoolIsGivenBack(t *testing.T) {
	s := newShared(t, freeLoopback(t), 8, false, 1, 2)
	d := pkt.Datagram{Data: make([]byte, inlineMax+1), SegSize: inlineMax + 1, Src: netip.AddrPortFrom(s.addr, 5), Dst: s.addr}
	if f := s.ports[1].hand(2, &d); f != port.Handed || s.h.left() != 1 {
		t.Fatalf("%v, %d buffers in use", f, s.h.left())
	}
	g := s.h.members[2]
	s.h.mu.Lock()
	delete(s.h.members, 2)
	s.h.mu.Unlock()
	s.ports[1].Flush()
	if s.h.left() != 0 || s.ports[1].Stats().RelayLost != 1 {
		t.Errorf("%d buffers in use, %d lost", s.h.left(), s.ports[1].Stats().RelayLost)
	}
	s.h.mu.Lock()
	s.h.members[2] = g
	s.h.mu.Unlock()
	// The first record names a buffer that is not the reader's.
	o := &outbox{b: make([]byte, 0, mailMax)}
	o.record(kindPool, &d, len(d.Data))
	order.PutUint32(o.b[16:], 7)
	buf, _ := s.h.members[1].PoolGet()
	s.h.members[1].PoolBytes(buf)[5] = 2 << (slotShift - 16) // the queue pair
	s.h.members[1].PoolPass(buf, 2)
	at := len(o.b)
	o.record(kindPool, &d, len(d.Data))
	order.PutUint32(o.b[at+16:], uint32(buf))
	if err := s.h.members[1].Send(2, o.b); err != nil {
		t.Fatal(err)
	}
	s.receive(t, map[int]int{2: 1}, func(int, *pkt.Datagram, []byte) {})
	if s.h.left() != 0 {
		t.Errorf("%d buffers in use", s.h.left())
	}
}
