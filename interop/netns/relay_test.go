//go:build interop && linux

package netns

import (
	"encoding/binary"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A middlebox is shown each IP packet that crosses a relay, in order within a direction, and passes on what it likes. way is 0
// from a to b and 1 back. The packet is its own.
type middlebox func(way int, ip []byte, forward func([]byte))

// relay joins two namespaces: each has a tun device, an interface without hardware address, and what leaves one is read here
// and written to the other. The devices have no offload: the kernel segments and completes every packet before it is read.
type relay struct {
	a, b  *namespace
	files [2]*os.File
	box   middlebox
	wg    sync.WaitGroup

	mu      sync.Mutex
	packets [][]byte // as they were read, if kept
}

// newRelay makes two hosts and joins them. keep: all packets are kept for checks.
func newRelay(t testing.TB, mtu int, keep bool, box middlebox) *relay {
	t.Helper()
	r := &relay{a: newNamespace(t), b: newNamespace(t), box: box}
	r.files[0] = r.a.tun(t, mtu, addrA, addrA6)
	r.files[1] = r.b.tun(t, mtu, addrB, addrB6)
	for way := range r.files {
		r.wg.Go(func() { r.run(way, keep) })
	}
	t.Cleanup(func() {
		for _, f := range r.files {
			_ = f.Close()
		}
		r.wg.Wait()
	})
	return r
}

func (r *relay) run(way int, keep bool) {
	buf := make([]byte, 1<<16)
	forward := func(b []byte) { _, _ = r.files[1-way].Write(b) }
	for {
		n, err := r.files[way].Read(buf)
		if err != nil {
			return
		}
		if keep {
			r.mu.Lock()
			r.packets = append(r.packets, slices.Clone(buf[:n]))
			r.mu.Unlock()
		}
		if r.box == nil {
			forward(buf[:n])
			continue
		}
		r.box(way, slices.Clone(buf[:n]), forward)
	}
}

// captured returns the packets so far.
func (r *relay) captured() [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.packets)
}

// tun makes a tun device in the namespace.
func (ns *namespace) tun(t testing.TB, mtu int, prefixes ...string) *os.File {
	t.Helper()
	var f *os.File
	err := ns.do(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		req, err := unix.NewIfreq("tun0")
		if err == nil {
			req.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
		}
		if err != nil {
			_ = unix.Close(fd)
			return err
		}
		// Polled, so that Close ends a Read; not before the interface is there, or the poller sees an error.
		f = os.NewFile(uintptr(fd), "/dev/net/tun")
		return nil
	})
	if err != nil {
		t.Fatalf("tun device (/dev/net/tun is needed): %v", err)
	}
	l, err := ns.link.LinkByName("tun0")
	must(t, err)
	must(t, ns.link.LinkSetMTU(l, mtu))
	must(t, ns.link.LinkSetTxQLen(l, 10000)) // a full queue would be one more loss
	ns.address(t, "tun0", prefixes...)
	return f
}

// setID gives an IPv4 packet another identification, and the header checksum that fits.
func setID(ip []byte, id uint16) {
	binary.BigEndian.PutUint16(ip[4:], id)
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], ^uint16(onesSum(0, ip[:20])))
}
