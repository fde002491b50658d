package udp

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// TestCase21_SourcePorts: constant for a key, spread over keys, all in RoCEv2's
// range, and the packets do leave from them.
func TestCase21_SourcePorts(t *testing.T) {
	a, b := open(t, Config{}), open(t, Config{})
	from, local := addLoopback(t, a)
	to, _ := addLoopback(t, b)
	ports := make(map[uint16]int)
	for key := range uint32(64) {
		src, udpPort, err := a.Source(local, key*0x61C88647)
		if err != nil {
			t.Fatal(err)
		}
		if udpPort < sourceBase {
			t.Errorf("port %#x is not one of RoCEv2's source ports", udpPort)
		}
		again, samePort, err := a.Source(local, key*0x61C88647)
		if err != nil || again != src || samePort != udpPort {
			t.Errorf("key %d: source %d port %d, then %d port %d, %v", key, src, udpPort, again, samePort, err)
		}
		ports[udpPort] = src
	}
	if len(ports) < 16 {
		t.Errorf("64 keys use %d source ports, want at least 16", len(ports))
	}
	for udpPort, src := range ports {
		tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
		f := flow(from, to, local)
		f.Source, f.Path = src, roce.NewPath(from, to, udpPort)
		put(t, tx, f, 1, nil)
		a.Send(tx)
		collect(t, b, 1, func(d *pkt.Datagram, _ int, packet []byte) {
			if d.Src.Addr() != from || d.Src.Port() != udpPort || !f.Check(packet, 0) {
				t.Errorf("arrived from %v, sent from port %d; ICRC good: %v", d.Src, udpPort, f.Check(packet, 0))
			}
		})
	}
	if _, _, err := a.Source(7, 0); !errors.Is(err, unix.EINVAL) {
		t.Errorf("source of no address: %v", err)
	}
}
