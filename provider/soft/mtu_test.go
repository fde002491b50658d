package soft

import (
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/udp"
)

// Case 24: the active MTU leaves room for the headers of every packet, 84 bytes.
func TestCase24_ActiveMTU(t *testing.T) {
	for link, want := range map[int]ib.MTU{
		1107: ib.MTU512, 1108: ib.MTU1024, 1500: ib.MTU1024, 4179: ib.MTU2048, 4180: ib.MTU4096, 9000: ib.MTU4096, 0: ib.MTU4096,
	} {
		p, err := udp.Open(udp.Config{})
		must(t, err)
		d, err := NewDevice(Config{Name: "soft_test", LinkMTU: link, Port: p})
		must(t, err)
		a, err := d.QueryPort(1)
		must(t, err)
		if a.ActiveMTU != want {
			t.Errorf("link MTU %d: active MTU %v, want %v", link, a.ActiveMTU, want)
		}
		must(t, d.Close())
	}
}
