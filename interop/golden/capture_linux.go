package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"net"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/interop/vm"
)

// capture collects all frames of an interface, without their Ethernet header.
type capture struct {
	fd      int
	stopped chan struct{} // closed to end the capture
	done    chan struct{}
	// packets and err are valid once done is closed.
	packets [][]byte
	err     error
}

func startCapture(n *vm.Net, ifname string) (*capture, error) {
	c := &capture{fd: -1, stopped: make(chan struct{}), done: make(chan struct{})}
	err := n.Do(func() error {
		ifi, err := net.InterfaceByName(ifname)
		if err != nil {
			return err
		}
		all := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ALL))
		if c.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20); err != nil {
			return err
		}
		// A read that finds nothing for a while looks whether the capture is over.
		if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 200_000}); err != nil {
			return err
		}
		return unix.Bind(c.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifi.Index})
	})
	if err != nil {
		if c.fd >= 0 {
			_ = unix.Close(c.fd)
		}
		return nil, fmt.Errorf("capture on %s: %w", ifname, err)
	}
	go c.read()
	return c, nil
}

func (c *capture) read() {
	defer close(c.done)
	defer unix.Close(c.fd)
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(c.fd, buf, 0)
		switch {
		case err == nil:
			c.packets = append(c.packets, slices.Clone(buf[:n]))
		case errors.Is(err, unix.EAGAIN):
			select {
			case <-c.stopped:
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
	close(c.stopped)
	<-c.done
	return c.packets, c.err
}

// named is a packet chosen as a golden vector.
type named struct {
	name string
	ip   []byte
}

// choose takes the first two RoCE packets of each kind, sorted by name. A wrong ICRC is an error.
func choose(packets [][]byte) ([]named, error) {
	seen := map[string]int{}
	var out []named
	for _, ip := range packets {
		ip, udp := cut(ip)
		if udp == nil || binary.BigEndian.Uint16(udp[2:]) != roce.Port {
			continue
		}
		name, err := kind(ip, udp)
		if err != nil {
			return nil, err
		}
		if got, want := binary.LittleEndian.Uint32(ip[len(ip)-roce.ICRCLen:]), icrc(ip, udp); got != want {
			return nil, fmt.Errorf("%s: ICRC %#08x, want %#08x: %x", name, got, want, ip)
		}
		seen[name]++
		switch seen[name] {
		case 1:
			out = append(out, named{name, ip})
		case 2:
			out = append(out, named{name + "-2", ip})
		}
	}
	slices.SortFunc(out, func(a, b named) int { return strings.Compare(a.name, b.name) })
	return out, nil
}

// kind names a packet by IP version, opcode, syndrome and MAD attribute.
func kind(ip, udp []byte) (string, error) {
	var p roce.Packet
	if err := roce.Parse(udp[8:], &p); err != nil {
		return "", fmt.Errorf("%w: %x", err, ip)
	}
	name := fmt.Sprintf("ipv%d-%v", ip[0]>>4, p.Op)
	if a := p.AETH(); a != nil {
		name += fmt.Sprintf("-%02x", uint8(a.Syndrome()))
	}
	if p.DETH() != nil && p.BTH.DestQP() == 1 && len(p.Payload) == 256 {
		name += fmt.Sprintf("-mad-%04x", binary.BigEndian.Uint16(p.Payload[16:]))
	}
	return name, nil
}

// cut returns an IP packet without what an interface put behind it, and its UDP part, nil if it has none.
func cut(b []byte) (ip, udp []byte) {
	const udpHeader = 8
	var length, header int
	switch {
	case len(b) >= 20 && b[0] == 0x45 && b[9] == unix.IPPROTO_UDP:
		length, header = int(binary.BigEndian.Uint16(b[2:])), 20
	case len(b) >= 40 && b[0]>>4 == 6 && b[6] == unix.IPPROTO_UDP:
		length, header = 40+int(binary.BigEndian.Uint16(b[4:])), 40
	default:
		return nil, nil
	}
	if length > len(b) || length < header+udpHeader {
		return nil, nil
	}
	return b[:length], b[header:length]
}

// icrc calculates the check sum the plain way, over a copy with the variant fields set to ones: it does not share code with
// the package that these packets test.
func icrc(ip, udp []byte) uint32 {
	b := slices.Concat([]byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}, ip[:len(ip)-roce.ICRCLen])
	h := b[8:]
	masked := []int{1, 8, 10, 11} // type of service, time to live, header check sum
	if h[0]>>4 == 6 {
		h[0] |= 0x0F
		masked = []int{1, 2, 3, 7} // class, flow label, hop limit
	}
	at := len(ip) - len(udp)
	masked = append(masked, at+6, at+7, at+8+4) // UDP check sum; reserved byte of the BTH
	for _, i := range masked {
		h[i] = 0xFF
	}
	return crc32.ChecksumIEEE(b)
}
