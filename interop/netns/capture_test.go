//go:build interop && linux

package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// capture collects all IP packets that cross an interface, in both directions.
type capture struct {
	fd      int
	stopped chan struct{}
	done    chan struct{}

	packets [][]byte // valid once done is closed
	err     error
}

// capture starts to capture on an interface; stop ends it.
func (ns *namespace) capture(t testing.TB, ifname string) *capture {
	t.Helper()
	c := &capture{fd: -1, stopped: make(chan struct{}), done: make(chan struct{})}
	err := ns.do(func() error {
		ifi, err := net.InterfaceByName(ifname)
		if err != nil {
			return err
		}
		all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
		if c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20); err != nil {
			return err
		}
		// A read that finds nothing for a while looks whether the capture is over.
		if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}); err != nil {
			return err
		}
		return unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifi.Index})
	})
	if err != nil {
		t.Fatalf("capture on %s (AF_PACKET): %v", ifname, err)
	}
	go c.read()
	t.Cleanup(func() { _, _ = c.stop() })
	return c
}

func (c *capture) read() {
	defer close(c.done)
	defer func() { _ = unix.Close(c.fd) }()
	buf := make([]byte, 1<<17)
	for {
		n, _, err := unix.Recvfrom(c.fd, buf, 0)
		switch {
		case err == nil:
			c.packets = append(c.packets, slices.Clone(buf[:n]))
		case errors.Is(err, unix.EAGAIN):
			select {
			case <-c.stopped:
				if st, err := unix.GetsockoptTpacketStats(c.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil && st.Drops > 0 {
					c.err = fmt.Errorf("the capture lost %d packets", st.Drops)
				}
				return
			default:
			}
		case !errors.Is(err, unix.EINTR):
			c.err = err
			return
		}
	}
}

// stop waits until nothing more arrives and returns what was captured.
func (c *capture) stop() ([][]byte, error) {
	select {
	case <-c.stopped:
	default:
		close(c.stopped)
	}
	<-c.done
	return c.packets, c.err
}

// checked ends the capture and checks its packets.
func (c *capture) checked(t testing.TB) *tally {
	t.Helper()
	packets, err := c.stop()
	must(t, err)
	return checkPackets(t, packets)
}
