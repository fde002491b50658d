package verbs_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// neighbours is a port of a process that has the numbers of slot 3 of an address that
// others share.
type neighbours struct {
	*simnet.Port
	answer port.Forwarded
}

func (neighbours) Numbers() (bits, mask ib.QPN) { return 3 << 17, 0x7F << 17 }

func (neighbours) Flush() {}

func (p neighbours) Forward(ib.QPN, *pkt.Datagram) port.Forwarded    { return p.answer }
func (p neighbours) Management(*pkt.Datagram, []byte) port.Forwarded { return p.answer }

// What is for another process that shares the address is counted by what became of it,
// and is no error of the port unless it was lost.
func TestStraysAreCounted(t *testing.T) {
	for _, c := range []struct {
		answer port.Forwarded
		to     uint32
		n      int
		want   counts
	}{
		{port.Handed, 4 << 17, 4, counts{"stray_pkts": 1}},
		{port.Full, 4 << 17, 4, counts{"drop_stray": 1}},
		{port.Nobody, 4 << 17, 4, counts{"drop_no_qp": 1}},
		{port.Handed, 3<<17 | 5, 4, counts{"drop_no_qp": 1}}, // of our numbers
		{port.Handed, 1, driver.MADLen, counts{"relayed_mads": 1}},
		{port.Full, 1, driver.MADLen, counts{"drop_stray": 1}},
		{port.Ours, 1, driver.MADLen, counts{"drop_gsi": 1}},
		{port.Nobody, 1, driver.MADLen, counts{"drop_gsi": 1}},
	} {
		t.Run(fmt.Sprintf("%d to %#x", c.answer, c.to), func(t *testing.T) {
			r := newRig(t, 1500)
			addr := netip.MustParseAddr("192.0.2.3")
			p := neighbours{r.net.NewPort(simnet.Config{}), c.answer}
			d := ok(soft.NewDevice(soft.Config{
				Name: "c", LinkMTU: 1500, Port: p, Clock: r.net.Now, Seed: 1, Manual: true, Addrs: []netip.Addr{addr},
			}))(t)
			r.net.Attach(p.Port, d.Turn)
			n := &node{t: t, net: r.net, port: p.Port, soft: d, ctx: verbs.NewContext(d), addr: addr}
			n.pd = ok(n.ctx.AllocPD())(t)
			n.cq = ok(n.ctx.CreateCQ(16, nil, nil))(t)
			t.Cleanup(n.close)
			q := n.qp(n.attr(ib.UD))
			if q.Num()>>17 != 3 {
				t.Fatalf("queue pair number %#x is not of this process", q.Num())
			}
			n.to(q, ib.QPStateRTS, nil, r.a.addr)
			b := r.packet(r.a.addr, q, roce.OpUDSendOnly, c.n, func(b roce.BTH) { b.SetDestQP(c.to) })
			r.net.Inject(netip.AddrPortFrom(r.a.addr, 0xC000), addr, b, 0)
			r.net.RunFor(1e6)
			if d := cmp.Diff(c.want, n.counted()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
