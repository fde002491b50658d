package udp

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/pkt"
)

// TestFlowLabelOnTheWire sends to a loopback socket that tells the label.
func TestFlowLabelOnTheWire(t *testing.T) {
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
	}
}
