package host

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

var lo4 = netip.MustParseAddr("127.0.0.1")

// testConfig is a group of the test's own.
func testConfig(t testing.TB) Config {
	return Config{IfIndex: 1, Private: fmt.Sprintf("-test-%d-%s", os.Getpid(), t.Name())}
}

func mustJoin(t testing.TB, cfg Config) *Group {
	t.Helper()
	g, err := Join(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

// eventually waits until something is so.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for !f() {
		if ctx.Err() != nil {
			t.Fatalf("it does not come to pass: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// makeSockets makes a group of sockets as a port does, without the filter.
func makeSockets(n int) Make {
	return func(addr netip.Addr) ([]int, error) {
		var fds []int
		at := &unix.SockaddrInet4{Addr: addr.As4()}
		for range n {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err == nil {
				err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			}
			if err == nil {
				err = unix.Bind(fd, at)
			}
			if err != nil {
				closeFDs(fds)
				return nil, err
			}
			if a, err := unix.Getsockname(fd); err == nil {
				at = a.(*unix.SockaddrInet4)
			}
			fds = append(fds, fd)
		}
		return fds, nil
	}
}

// Members of a group have slots of their own, numbers that tell so, and see each other.
func TestJoinAndLeave(t *testing.T) {
	cfg := testConfig(t)
	a := mustJoin(t, cfg)
	b := mustJoin(t, cfg)
	if a.Slot() != 1 || b.Slot() != 2 {
		t.Fatalf("slots %d and %d", a.Slot(), b.Slot())
	}
	if bits, mask := b.Numbers(); bits != 2<<17 || mask != 0xFE0000 {
		t.Errorf("numbers %#x/%#x", bits, mask)
	}
	if bits, mask := b.CommIDs(); bits != 2<<25 || mask != 0xFE000000 {
		t.Errorf("communication IDs %#x/%#x", bits, mask)
	}
	if list := a.Members(); len(list) != 2 || list[1].Slot != 2 || list[1].PID != os.Getpid() || list[1].Generation != 1 {
		t.Errorf("members %+v", list)
	}
	if slot, ok := a.SlotOf(2<<17 | 77); slot != 2 || !ok {
		t.Errorf("slot of a number: %d, %v", slot, ok)
	}
	if _, ok := a.SlotOf(3 << 17); ok {
		t.Error("a number of nobody's slot is somebody's")
	}
	eventually(t, "the founder is the steward", a.Steward)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	if list := a.Members(); len(list) != 1 {
		t.Errorf("members %+v", list)
	}
	c := mustJoin(t, cfg)
	if list := a.Members(); c.Slot() != 2 || list[1].Generation != 2 {
		t.Errorf("slot %d, members %+v", c.Slot(), list)
	}
	a.Close()
	eventually(t, "another one is the steward", c.Steward)
	if a.Steward() || a.Members() != nil || a.Send(2, nil) != ErrClosed {
		t.Error("who has left is still there")
	}
	c.Close()
	if bound(c.name) {
		t.Error("the name is taken although nobody is left")
	}
	d := mustJoin(t, cfg)
	if d.Slot() != 1 || d.Members()[0].Generation != 1 {
		t.Error("it is no new group")
	}
}

// Fifty at once found one group.
func TestFoundByMany(t *testing.T) {
	cfg := testConfig(t)
	const n = 50
	var wg sync.WaitGroup
	groups := make([]*Group, n)
	for i := range n {
		wg.Go(func() {
			g, err := Join(context.Background(), cfg)
			if err != nil {
				t.Error(err)
				return
			}
			groups[i] = g
		})
	}
	wg.Wait()
	seen := map[int]bool{}
	for _, g := range groups {
		if g == nil {
			t.FailNow()
		}
		seen[g.Slot()] = true
	}
	if len(seen) != n || len(groups[0].Members()) != n {
		t.Errorf("%d slots, %d members", len(seen), len(groups[0].Members()))
	}
	stewards := 0
	for _, g := range groups {
		if g.Steward() {
			stewards++
		}
	}
	if stewards != 1 {
		t.Errorf("%d stewards", stewards)
	}
	for _, g := range groups {
		wg.Go(func() { g.Close() })
	}
	wg.Wait()
}

// There are 127 slots; who finds none is told so.
func TestFull(t *testing.T) {
	cfg := testConfig(t)
	var list []*Group
	for range Slots - 1 {
		list = append(list, mustJoin(t, cfg))
	}
	if _, err := Join(context.Background(), cfg); !errors.Is(err, ErrFull) || !errors.Is(err, unix.EUSERS) {
		t.Errorf("the 128th: %v", err)
	}
	list[63].Close()
	if g := mustJoin(t, cfg); g.Slot() != 64 {
		t.Errorf("slot %d", g.Slot())
	}
}

// What is sent to a mailbox comes out of it, and a full one says so.
func TestMailbox(t *testing.T) {
	cfg := testConfig(t)
	a, b := mustJoin(t, cfg), mustJoin(t, cfg)
	buf := make([]byte, MaxMail)
	if _, err := b.Recv(buf); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("an empty one: %v", err)
	}
	if err := a.Send(b.Slot(), []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if n, err := b.Recv(buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	n := 0
	msg := make([]byte, 320)
	for ; a.Send(b.Slot(), msg) == nil; n++ {
	}
	if n < 300 {
		t.Errorf("%d management datagrams fit", n)
	}
	t.Logf("%d messages of %d bytes fit", n, len(msg))
	if s := a.Stats(); s.MailDropped != 1 || s.MailSent != uint64(n)+1 {
		t.Errorf("%+v", s)
	}
	if err := a.Send(a.Slot(), make([]byte, MaxMail)); err != nil {
		t.Errorf("the longest one to itself: %v", err)
	}
	if err := a.Send(a.Slot(), make([]byte, MaxMail+1)); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("one that is too long: %v", err)
	}
	for _, slot := range []int{-1, 0, 3, 127, 128, 1 << 20} {
		if err := a.Send(slot, msg); !errors.Is(err, unix.ESRCH) {
			t.Errorf("to slot %d: %v", slot, err)
		}
	}
	b.Close()
	c := mustJoin(t, cfg)
	if _, err := c.Recv(buf); c.Slot() != 2 || !errors.Is(err, unix.EAGAIN) {
		t.Errorf("slot %d has mail of its last owner: %v", c.Slot(), err)
	}
}

// The sockets of an address are made once, and stay when who made them goes.
func TestSockets(t *testing.T) {
	cfg := testConfig(t)
	a, b := mustJoin(t, cfg), mustJoin(t, cfg)
	made := 0
	mk := func(addr netip.Addr) ([]int, error) {
		made++
		return makeSockets(Slots)(addr)
	}
	if _, err := b.Control(lo4); !errors.Is(err, unix.ENOENT) {
		t.Errorf("an address that nobody uses: %v", err)
	}
	sa, err := a.Sockets(lo4, mk)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFDs([]int{sa.Own, sa.Control})
	sb, err := b.Sockets(lo4, mk)
	if err != nil {
		t.Fatal(err)
	}
	if made != 1 {
		t.Errorf("made %d times", made)
	}
	at, err := unix.Getsockname(sb.Own)
	if err != nil {
		t.Fatal(err)
	}
	same := func(x, y int) bool {
		var p, q unix.Stat_t
		return unix.Fstat(x, &p) == nil && unix.Fstat(y, &q) == nil && p.Ino == q.Ino
	}
	if !same(sa.Control, sb.Control) || same(sa.Own, sb.Own) || same(sa.Own, sa.Control) {
		t.Error("these are not the sockets of slots 0, 1 and 2")
	}
	if list := b.Addrs(); len(list) != 1 || list[0] != lo4 {
		t.Errorf("addresses %v", list)
	}
	closeFDs([]int{sb.Own, sb.Control})
	b.Close()
	c := mustJoin(t, cfg)
	sc, err := c.Sockets(lo4, mk)
	if err != nil || made != 1 {
		t.Fatalf("made %d times, %v", made, err)
	}
	defer closeFDs([]int{sc.Own, sc.Control})
	if x, err := unix.Getsockname(sc.Own); err != nil || *x.(*unix.SockaddrInet4) != *at.(*unix.SockaddrInet4) {
		t.Errorf("another socket: %v, %v", x, err)
	}
	for range 2 { // another one uses it
		if err := a.Drop(lo4); err != nil || len(c.Addrs()) != 1 {
			t.Errorf("addresses %v, %v", c.Addrs(), err)
		}
	}
	if err := c.Drop(lo4); err != nil {
		t.Error(err)
	}
	if err := c.Drop(lo4); !errors.Is(err, unix.ENOENT) {
		t.Errorf("dropped twice: %v", err)
	}
	if len(c.Addrs()) != 0 {
		t.Error("it is in use still")
	}
	// Where the kernel does not steer there is one socket.
	s, err := c.Sockets(lo4, makeSockets(1))
	if err != nil || s.Own != -1 || s.Control < 0 {
		t.Errorf("%+v, %v", s, err)
	}
	closeFD(s.Control)
}

// The kernel's search for sockets that are in flight in each other's queues, and so of
// nobody, does not find those that only a keeper has.
func TestKernelCollectsGarbage(t *testing.T) {
	cfg := testConfig(t)
	a, b := mustJoin(t, cfg), mustJoin(t, cfg)
	s, err := a.Sockets(lo4, makeSockets(Slots))
	if err != nil {
		t.Fatal(err)
	}
	closeFDs([]int{s.Own, s.Control})
	for range 50 {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|sockFlags, 0)
		if err != nil {
			t.Fatal(err)
		}
		for i := range pair {
			if err := sendFDs(pair[i], []byte("x"), pair[0], pair[1]); err != nil {
				t.Fatal(err)
			}
		}
		closeFDs(pair[:]) // each is kept by the other's queue alone: it takes the search to free them
	}
	s, err = b.Sockets(lo4, makeSockets(Slots))
	if err != nil {
		t.Fatal(err)
	}
	closeFDs([]int{s.Own, s.Control})
	var buf [8]byte
	if err := a.Send(2, []byte("x")); err != nil {
		t.Error(err)
	}
	if n, err := b.Recv(buf[:]); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	c := mustJoin(t, cfg)
	if err := a.Send(3, []byte("yy")); err != nil {
		t.Error(err)
	}
	if n, err := c.Recv(buf[:]); n != 2 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// All that can be had of Make's failures.
func TestSocketsFail(t *testing.T) {
	g := mustJoin(t, testConfig(t))
	mine := errors.New("mine")
	if _, err := g.Sockets(lo4, func(netip.Addr) ([]int, error) { return nil, mine }); !errors.Is(err, mine) {
		t.Error(err)
	}
	tries := 0
	s, err := g.Sockets(lo4, func(a netip.Addr) ([]int, error) {
		if tries++; tries < 3 {
			return nil, fmt.Errorf("soon: %w", unix.EAGAIN)
		}
		return makeSockets(1)(a)
	})
	if err != nil || tries != 3 {
		t.Errorf("%d tries, %v", tries, err)
	}
	closeFD(s.Control)
	if _, err := g.Sockets(netip.MustParseAddr("127.0.0.2"), makeSockets(7)); !errors.Is(err, unix.EINVAL) {
		t.Errorf("seven sockets: %v", err)
	}
	if _, err := g.Sockets(netip.MustParseAddr("127.0.0.3"), func(netip.Addr) ([]int, error) {
		return makeSockets(1)(lo4)
	}); !errors.Is(err, ErrGarbage) {
		t.Errorf("a socket of another address: %v", err)
	}
	for i := range MaxAddrs {
		s, err := g.Sockets(netip.AddrFrom4([4]byte{127, 0, 1, byte(i)}), makeSockets(1))
		if i < MaxAddrs-2 && err != nil || i >= MaxAddrs-2 && !errors.Is(err, ErrAddrs) {
			t.Errorf("address %d: %v", i, err)
		}
		closeFD(s.Control)
	}
}

// Records can be read by who buries their owner.
func TestRecords(t *testing.T) {
	cfg := testConfig(t)
	a, b := mustJoin(t, cfg), mustJoin(t, cfg)
	rec := driver.ConnRecord{
		Local: lo4, Remote: netip.MustParseAddr("fe80::1"), LocalID: 1<<25 | 5, RemoteID: 0xDEADBEEF, LocalQPN: 0x21234, RemoteQPN: 0xFFFFFF,
		LocalPSN: 0x123456, RemotePSN: 0x654321, TrafficClass: 0x28, HopLimit: 64, State: 3,
	}
	h, err := a.RecordConn(&rec)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := b.recordsOf(1); err != nil || len(list) != 1 || list[0] != rec {
		t.Errorf("%+v, %v", list, err)
	}
	if slot, ok := b.d.lookup(rec.Remote, rec.RemoteID); slot != 1 || !ok {
		t.Errorf("found with %d, %v", slot, ok)
	}
	for i := range 5 {
		rec.RemoteID, rec.State = uint32(i), uint8(i)
		h.Update(&rec)
		if list, err := b.recordsOf(1); err != nil || len(list) != 1 || list[0] != rec {
			t.Errorf("%+v, %v", list, err)
		}
		if slot, ok := b.d.lookup(rec.Remote, rec.RemoteID); slot != 1 || !ok {
			t.Errorf("found with %d, %v", slot, ok)
		}
	}
	if _, ok := b.d.lookup(rec.Remote, 0xDEADBEEF); ok {
		t.Error("found by what it was called before")
	}
	h.Release()
	h.Release()
	if list, err := b.recordsOf(1); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	rec.LocalID = 2 << 25
	if _, err := a.RecordConn(&rec); !errors.Is(err, unix.EINVAL) {
		t.Errorf("an ID of another member: %v", err)
	}
}

// Buffers of the pool go from hand to hand.
func TestPool(t *testing.T) {
	cfg := testConfig(t)
	a, b := mustJoin(t, cfg), mustJoin(t, cfg)
	seen := map[int]bool{}
	for {
		i, ok := a.PoolGet()
		if !ok {
			break
		}
		if seen[i] {
			t.Fatalf("buffer %d twice", i)
		}
		seen[i] = true
	}
	if len(seen) != PoolBufs {
		t.Errorf("%d buffers", len(seen))
	}
	copy(a.PoolBytes(7), "abc")
	if a.PoolPass(7, 3) || b.PoolPass(7, 2) || !a.PoolPass(7, 2) || a.PoolPass(7, 2) {
		t.Error("passing")
	}
	if a.PoolMine(7) || !b.PoolMine(7) || string(b.PoolBytes(7)[:3]) != "abc" || len(b.PoolBytes(7)) != PoolBuf {
		t.Error("it did not come")
	}
	passed := 1
	for i := range PoolBufs {
		if i != 7 && a.PoolPass(i, 2) {
			passed++
		}
	}
	if passed != poolShare {
		t.Errorf("one member got %d", passed)
	}
	a.PoolPut(7)
	if !b.PoolMine(7) {
		t.Error("one gives back what is another's")
	}
	b.PoolPut(7)
	if i, ok := a.PoolGet(); i != 7 || !ok {
		t.Errorf("buffer %d, %v", i, ok)
	}
	b.Close()
	if _, ok := a.PoolGet(); !ok {
		t.Error("what one had who left is lost")
	}
	for _, i := range []int{-1, PoolBufs, 1 << 30} {
		if a.PoolBytes(i) != nil || a.PoolMine(i) || a.PoolPass(i, 1) {
			t.Errorf("buffer %d", i)
		}
		a.PoolPut(i)
	}
}

// No descriptor is left of who has left, nor of who was not let in.
func TestNoDescriptorIsLeft(t *testing.T) {
	cfg := testConfig(t)
	count := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Skip(err)
		}
		return len(list)
	}
	a := mustJoin(t, cfg)
	eventually(t, "it is the steward", a.Steward)
	before := count()
	for range 100 { // the steward looks through what there is, with descriptors of its own
		before = min(before, count())
	}
	for i := range 5 {
		b := mustJoin(t, cfg)
		s, err := b.Sockets(lo4, makeSockets(Slots))
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Send(1, nil); err != nil {
			t.Error(err)
		}
		if err := b.Send(b.Slot(), nil); err != nil {
			t.Error(err)
		}
		if i == 0 { // none is inherited by a program that this one starts
			for fd := range 4 * Slots {
				if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); fd > 2 && err == nil && flags&unix.FD_CLOEXEC == 0 {
					where, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
					if !strings.HasPrefix(where, "/dev") && !strings.HasPrefix(where, "pipe") { // the shell's
						t.Errorf("descriptor %d, %s, is inherited", fd, where)
					}
				}
			}
		}
		closeFDs([]int{s.Own, s.Control})
		b.Close()
	}
	eventually(t, "as many descriptors as before", func() bool { return count() == before })
	a.Close()
}

func BenchmarkJoin(b *testing.B) {
	for _, others := range []int{0, 1, 50} {
		b.Run(fmt.Sprintf("beside %d", others), func(b *testing.B) {
			cfg := testConfig(b)
			for range others {
				mustJoin(b, cfg)
			}
			for b.Loop() {
				g, err := Join(context.Background(), cfg)
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				g.Close()
				b.StartTimer()
			}
		})
	}
}

func BenchmarkMail(b *testing.B) {
	cfg := testConfig(b)
	x, y := mustJoin(b, cfg), mustJoin(b, cfg)
	buf := make([]byte, MaxMail)
	for _, n := range []int{64, 320, 4200} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := x.Send(y.Slot(), buf[:n]); err != nil {
					b.Fatal(err)
				}
				if _, err := y.Recv(buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkSteward(b *testing.B) {
	g := mustJoin(b, testConfig(b))
	for b.Loop() {
		g.Steward()
	}
}
