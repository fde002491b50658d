package udp

import (
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/pkt"
)

// ownLoopback gives the test's thread a network of its own, with a loopback that no
// other test has. It goes away with the test.
func ownLoopback(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace: %v", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Skip(err)
	}
}

// TestFlowLabelOnTheWire sends to a loopback socket that tells the label.
func TestFlowLabelOnTheWire(t *testing.T) {
	ownLoopback(t)
	a := netip.IPv6Loopback()
	for _, v := range variants {
		p := open(t, v.cfg)
		local, err := p.AddLocal(a)
		if err != nil {
			t.Skip(err)
		}
		fd := (*p.socks.Load())[local].fd
		if err := unix.SetsockoptInt(fd, unix.SOL_IPV6, ipv6FlowInfo, 1); err != nil {
			t.Skip(err)
		}
		for _, want := range []uint32{0x12345, 0xFFFFF, 1} {
			f := flow(a, a, local)
			f.FlowLabel, f.TClass, f.HopLimit = want, 0x68, 9
			tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
			put(t, tx, f, 1, []byte("12345678"))
			p.Send(tx)
			fds := [1]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if n, err := unix.Poll(fds[:], 5000); n != 1 || err != nil {
				t.Fatalf("%s: nothing came: %v", v.name, err)
			}
			buf, oob := make([]byte, 256), make([]byte, 512)
			_, n, _, _, err := unix.Recvmsg(fd, buf, oob, 0)
			if err != nil {
				t.Fatal(err)
			}
			msgs, err := unix.ParseSocketControlMessage(oob[:n])
			if err != nil {
				t.Fatal(err)
			}
			got, found := uint32(0), false
			for _, m := range msgs {
				if m.Header.Level == unix.SOL_IPV6 && m.Header.Type == ipv6FlowInfo {
					w := binary.BigEndian.Uint32(m.Data)
					if got, found = w&0xFFFFF, true; w>>20&0xFF != 0x68 {
						t.Errorf("%s: traffic class %#x beside the label", v.name, w>>20&0xFF)
					}
				}
			}
			if !found || got != want {
				t.Errorf("%s: flow label %#x (told: %v), want %#x", v.name, got, found, want)
			}
		}
		_ = p.Close()
	}
}

// Where somebody leased a flow label for himself alone, the kernel takes none from
// others: packets go without one then, all but the first.
func TestFlowLabelLeasedByOthers(t *testing.T) {
	ownLoopback(t)
	a := netip.IPv6Loopback()
	p := open(t, Config{})
	local, err := p.AddLocal(a)
	if err != nil {
		t.Skip(err)
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	// struct in6_flowlabel_req: destination, label, action GET, share EXCL, flags CREATE.
	req := make([]byte, 32)
	d := a.As16()
	copy(req, d[:])
	binary.BigEndian.PutUint32(req[16:], 0x54321)
	req[21] = 1
	binary.NativeEndian.PutUint16(req[22:], 1)
	const ipv6FlowLabelMgr = 32
	if err := unix.SetsockoptString(fd, unix.SOL_IPV6, ipv6FlowLabelMgr, string(req)); err != nil {
		t.Skipf("no lease: %v", err)
	}
	f := flow(a, a, local)
	f.FlowLabel = 0x12345
	for i, want := range []int{0, 1, 1} {
		tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
		put(t, tx, f, i, []byte("12345678"))
		p.Send(tx)
		// The loopback delivers within the send.
		rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, 4)}
		if got := p.Recv(&rx); got != want {
			t.Errorf("send %d: %d datagrams came, want %d", i, got, want)
		}
	}
	if n := p.Stats().TxErrors; n != 1 {
		t.Errorf("%d errors, want 1", n)
	}
}
