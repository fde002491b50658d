package udp

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// slots opens the sockets of an address and closes them with the test.
func slots(t testing.TB, addr netip.Addr, n int) []int {
	t.Helper()
	fds, err := openSlots(addr, n)
	if errors.Is(err, errNoFilter) || addr.Is6() && (errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EAFNOSUPPORT)) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(fds) })
	return fds
}

// freeLoopback is an address that nobody has opened.
func freeLoopback(t testing.TB) netip.Addr {
	t.Helper()
	p := open(t, Config{})
	a, _ := addLoopback(t, p)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return a
}

// The filter takes the upper seven bits of the destination queue pair number for the
// socket, over both families, whatever the source is; what has no number is for socket 0.
func TestFilterSteers(t *testing.T) {
	for _, addr := range []netip.Addr{freeLoopback(t), netip.IPv6Loopback()} {
		t.Run(addr.String(), func(t *testing.T) {
			fds := slots(t, addr, slotCount)
			to := sockaddr(addr, 0, roce.Port)
			for slot := range slotCount {
				// The lower bits of the number, and bytes beside it, must not matter.
				for _, low := range []uint32{0, 1<<slotShift - 1, 0x10000} {
					from, err := unix.Socket(family(addr), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
					if err != nil {
						t.Fatal(err)
					}
					b := make([]byte, roce.BTHLen+4)
					for i := range b {
						b[i] = 0xFF
					}
					n := uint32(slot)<<slotShift | low
					b[5], b[6], b[7] = byte(n>>16), byte(n>>8), byte(n)
					err = unix.Sendto(from, b, 0, to)
					_ = unix.Close(from)
					if err != nil {
						t.Fatal(err)
					}
					if got := readable(t, fds); got != slot {
						t.Fatalf("number %#x went to socket %d, want %d", n, got, slot)
					}
				}
			}
			from, err := unix.Socket(family(addr), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Close(from) }()
			for n := range 6 {
				if err := unix.Sendto(from, make([]byte, n), 0, to); err != nil {
					t.Fatal(err)
				}
				if got := readable(t, fds); got != 0 {
					t.Errorf("%d bytes went to socket %d, want 0", n, got)
				}
			}
		})
	}
}

// readable finds the one socket that has a datagram, and takes it.
func readable(t *testing.T, fds []int) int {
	t.Helper()
	polls := make([]unix.PollFd, len(fds))
	for i, fd := range fds {
		polls[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	}
	if _, err := unix.Poll(polls, 1000); err != nil {
		t.Fatal(err)
	}
	found := -1
	for i := range polls {
		if polls[i].Revents != 0 {
			if found >= 0 {
				t.Fatalf("sockets %d and %d are readable", found, i)
			}
			found = i
			if _, _, err := unix.Recvfrom(fds[i], make([]byte, 1<<16), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
	return found
}

// A send with segmentation offload, 15 packets of 4 KiB, goes whole to the socket of its
// number, and leaves from an address that is shared too.
func TestFilterKeepsSegments(t *testing.T) {
	for _, addr := range []netip.Addr{freeLoopback(t), netip.IPv6Loopback()} {
		t.Run(addr.String(), func(t *testing.T) {
			fds := slots(t, addr, slotCount)
			p := open(t, Config{})
			if p.Caps().MaxSegs < 15 {
				t.Skip("no segmentation offload")
			}
			s := &socket{fd: dup(t, fds[3]), addr: addr}
			for _, s := range []*socket{s, {fd: fds[77], addr: addr}} {
				if err := s.setup(&p.cfg); err != nil {
					t.Fatal(err)
				}
			}
			p.socks.Store(&[]*socket{s})
			tx := pkt.NewTx(pkt.TxCaps{MaxSegs: p.Caps().MaxSegs})
			f := flow(addr, addr, 0)
			for range 15 {
				h := tx.Begin(f, roce.BTHLen, 4096)
				roce.BTH(h).Put(roce.OpUDSendOnly, false, 0, uint16(ib.PKeyDefault), 77<<slotShift|5, false, 0)
				if err := tx.Payload(make([]byte, 4096)); err != nil {
					t.Fatal(err)
				}
				tx.End()
			}
			p.Send(tx)
			if st := p.Stats(); st.TxMsgs != 1 || st.TxPackets != 15 {
				t.Fatalf("sent %+v, want one message of 15 packets", st)
			}
			buf := make([]byte, 1<<16)
			n, _, err := unix.Recvfrom(fds[77], buf, unix.MSG_DONTWAIT)
			if want := 15 * (roce.BTHLen + 4096 + 4); err != nil || n != want {
				t.Fatalf("received %d bytes, %v, want %d", n, err, want)
			}
		})
	}
}

func dup(t *testing.T, fd int) int {
	t.Helper()
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// While somebody has the port, be it with a group that would let us in, there are no
// sockets; and nobody who comes later gets in by chance.
func TestSlotsAreExclusive(t *testing.T) {
	addr := freeLoopback(t)
	fds := slots(t, addr, 4)
	if got, err := openSlots(addr, 4); !errors.Is(err, unix.EADDRINUSE) || got != nil {
		t.Fatalf("%v, %v, want EADDRINUSE", got, err)
	}
	p := open(t, Config{})
	if _, err := p.AddLocal(addr); !errors.Is(err, unix.EADDRINUSE) {
		t.Fatalf("%v, want EADDRINUSE", err)
	}
	for _, fd := range fds {
		if n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR); err != nil || n != 0 {
			t.Fatalf("SO_REUSEADDR is %d, %v: another user could take the port over", n, err)
		}
	}
}

// Who closes its copies of the sockets does not move the others' places, and what is
// queued stays.
func TestSlotsStayInPlace(t *testing.T) {
	addr := freeLoopback(t)
	fds := slots(t, addr, 8)
	for i, fd := range fds {
		_ = unix.Close(dup(t, fd))
		b := make([]byte, roce.BTHLen+4)
		b[5] = byte(i << 1)
		from, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		err = unix.Sendto(from, b, 0, sockaddr(addr, 0, roce.Port))
		_ = unix.Close(from)
		if err != nil {
			t.Fatal(err)
		}
		if got := readable(t, fds); got != i {
			t.Fatalf("went to %d, want %d", got, i)
		}
	}
}
