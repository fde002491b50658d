package host

import (
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/internal/wire/mad"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Management datagrams go to who listens, to whose ID they answer, to who has answered them
// before, and else to who has received them, or the lowest member that knows how to refuse them.
func TestRoute(t *testing.T) {
	tab := newTable()
	members := map[int]*claims{}
	for _, slot := range []int{1, 2, 3, 4, 5} {
		members[slot] = tab.member(slot)
	}
	tab.d.store(slotAt(1, slotFlags), 0)  // serves no MADs
	tab.d.store(slotAt(5, slotState), 99) // nobody
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	remote := netip.MustParseAddr("10.9.9.9")
	listen := func(slot int, at string, flags driver.ClaimFlags) {
		h, err := members[slot].claim(mad.PortSpaceTCP, netip.MustParseAddrPort(at), flags)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := members[slot].listen(h, true, netip.MustParseAddrPort(at)); err != nil {
			t.Fatal(err)
		}
	}
	listen(3, "10.0.0.1:7471", 0)
	listen(4, "0.0.0.0:7472", 0)
	listen(3, "[::]:7473", 0)
	listen(1, "0.0.0.0:7474", 0)
	if _, err := members[4].claim(mad.PortSpaceTCP, netip.MustParseAddrPort("10.0.0.1:7475"), 0); err != nil {
		t.Fatal(err)
	}
	rec := driver.ConnRecord{Remote: remote, RemoteID: 0x77}
	tab.d.index(4, members[4].gen, &rec)

	build := func(attr mad.AttrID, fill func(p []byte)) []byte {
		buf := make([]byte, mad.Len)
		p := mad.Put(buf, attr, 1)
		fill(p)
		return buf
	}
	req := func(port uint16, id uint32) []byte {
		return build(mad.AttrREQ, func(p []byte) {
			mad.REQ(p).SetServiceID(mad.ServiceID(mad.PortSpaceTCP, port))
			mad.REQ(p).SetLocalCommID(id)
		})
	}
	ours := func(attr mad.AttrID, local, remote uint32) []byte {
		return build(attr, func(p []byte) {
			mad.RTU(p).SetLocalCommID(local)
			mad.RTU(p).SetRemoteCommID(remote)
		})
	}
	for _, c := range []struct {
		name string
		at   netip.Addr
		mad  []byte
		want int
	}{
		{"REQ to who listens", a, req(7471, 5), 3},
		{"REQ to another address", b, req(7471, 5), 2},
		{"REQ to a wildcard", b, req(7472, 5), 4},
		{"REQ over IPv4 to ::", b, req(7473, 5), 3},
		{"REQ to who takes no MADs", b, req(7474, 5), 2},
		{"REQ to a port that is only bound", a, req(7475, 5), 2},
		{"REQ to nobody", a, req(9, 5), 2},
		{"REQ again, which 4 has answered", a, req(7471, 0x77), 4},
		{"REQ of no IP service", a, build(mad.AttrREQ, func(p []byte) { mad.REQ(p).SetServiceID(1 << 40) }), 2},
		{"SIDR_REQ to who listens", a, build(mad.AttrSIDRREQ, func(p []byte) {
			mad.SIDRREQ(p).SetServiceID(mad.ServiceID(mad.PortSpaceTCP, 7471))
		}), 3},
		{"SIDR_REP by its request", a, build(mad.AttrSIDRREP, func(p []byte) { mad.SIDRREP(p).SetRequestID(4<<25 | 9) }), 4},
		{"SIDR_REP to nobody", a, build(mad.AttrSIDRREP, func(p []byte) { mad.SIDRREP(p).SetRequestID(99<<25 | 9) }), 2},
		{"REP", a, ours(mad.AttrREP, 5, 3<<25|1), 3},
		{"RTU", a, ours(mad.AttrRTU, 5, 4<<25|0x1FFFFFF), 4},
		{"REJ", a, ours(mad.AttrREJ, 5, 3<<25|1), 3},
		{"DREQ to a slot of nobody's", a, ours(mad.AttrDREQ, 5, 5<<25|1), 2},
		{"DREQ to slot 0", a, ours(mad.AttrDREQ, 5, 1), 2},
		{"DREP", a, ours(mad.AttrDREP, 5, 4<<25), 4},
		{"MRA", a, ours(mad.AttrMRA, 5, 3<<25), 3},
		{"LAP", a, ours(mad.AttrLAP, 5, 3<<25), 3},
		{"REJ without our ID, of a connection of 4", a, ours(mad.AttrREJ, 0x77, 0), 4},
		{"REJ without our ID, of none", a, ours(mad.AttrREJ, 0x78, 0), 2},
		{"of another class", a, make([]byte, mad.Len), 2},
		{"short", a, make([]byte, 10), 2},
	} {
		if got, ok := members[2].route(c.at, remote, c.mad); got != c.want || !ok {
			t.Errorf("%s: slot %d, %v, want %d", c.name, got, ok, c.want)
		}
	}
	if slot, ok := members[4].route(a, remote, req(9, 5)); slot != 4 || !ok {
		t.Errorf("REQ to nobody that 4 has received: slot %d, %v", slot, ok)
	}
	for slot := range Slots {
		tab.d.store(slotAt(slot, slotFlags), 0)
	}
	if slot, ok := members[2].route(a, remote, req(7471, 5)); ok {
		t.Errorf("nobody takes them: slot %d", slot)
	}
}

// The index of connections finds most of what is in it, and nothing that is not.
func TestConnIndex(t *testing.T) {
	tab := newTable()
	c := tab.member(7)
	const n = 50000
	rec := func(i int) *driver.ConnRecord {
		return &driver.ConnRecord{Remote: netip.AddrFrom4([4]byte{10, 0, byte(i), byte(i >> 8)}), RemoteID: uint32(i) * 2654435761}
	}
	for i := range n {
		tab.d.index(7, c.gen, rec(i))
	}
	found := 0
	for i := range n {
		r := rec(i)
		if slot, ok := tab.d.lookup(r.Remote, r.RemoteID); ok {
			found++
			if slot != 7 {
				t.Fatalf("slot %d", slot)
			}
		}
		if _, ok := tab.d.lookup(r.Remote, r.RemoteID+1); ok && i < 1000 {
			t.Errorf("%d is found that is not there", i)
		}
	}
	if found < n*99/100 {
		t.Errorf("%d of %d are found", found, n)
	}
	for i := range n {
		tab.d.unindex(7, c.gen, rec(i))
	}
	for i := range indexLen {
		if tab.d.load(indexAt+i) != 0 {
			t.Fatal("something is left")
		}
	}
	tab.d.index(7, c.gen, rec(1))
	tab.member(7)
	if _, ok := tab.d.lookup(rec(1).Remote, rec(1).RemoteID); ok {
		t.Error("a dead one's is found")
	}
}

func BenchmarkRoute(b *testing.B) {
	tab := newTable()
	c := tab.member(7)
	at := netip.MustParseAddrPort("10.0.0.1:7471")
	h, err := c.claim(mad.PortSpaceTCP, at, 0)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := c.listen(h, true, at); err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, mad.Len)
	mad.REQ(mad.Put(buf, mad.AttrREQ, 1)).SetServiceID(mad.ServiceID(mad.PortSpaceTCP, 7471))
	b.ReportAllocs()
	for b.Loop() {
		if slot, _ := c.route(at.Addr(), at.Addr(), buf); slot != 7 {
			b.Fatal(slot)
		}
	}
}
