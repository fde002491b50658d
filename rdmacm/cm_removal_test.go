package rdmacm_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/rdmacm"
)

// A device that goes away: every ID on it is told, calls fail, all can be destroyed,
// and the other device's IDs go on.
func TestDeviceRemoval(t *testing.T) {
	r := newCMRig(t)
	var report func(soft.Netdev)
	r.watch = func(f func(soft.Netdev)) (func(), error) {
		report = f
		f(soft.Netdev{Up: true, Enabled: true, MTU: 1500, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.3")}})
		return func() {}, nil
	}
	h := r.host("c", 3, "192.0.2.3")
	l := h.listen(rdmacm.PSTCP, netip.AddrPortFrom(h.addr, 1), 0)
	r.b.listen(rdmacm.PSTCP, r.b.at(), 0)
	c := h.active(rdmacm.PSTCP, r.b.at())
	h.must(c.Connect(t.Context(), nil))
	s := r.b.event(rdmacm.EventConnectRequest).ID
	r.b.must(s.CreateQP(nil, cmAttr()))
	r.b.must(s.Accept(t.Context(), nil))
	h.event(rdmacm.EventEstablished)
	r.b.event(rdmacm.EventEstablished)

	report(soft.Netdev{Gone: true})
	told := map[*rdmacm.ID]bool{}
	for range 2 {
		told[h.event(rdmacm.EventDeviceRemoval).ID] = true
	}
	if !told[c] || !told[l] {
		t.Errorf("told: %v", told)
	}
	if st := c.QP().State(); st != ib.QPStateErr {
		t.Errorf("queue pair in %v", st)
	}
	for _, err := range []error{c.Disconnect(t.Context()), l.Listen(0), c.Connect(t.Context(), nil), l.SetTOS(1)} {
		if !errors.Is(err, syscall.ENODEV) {
			t.Errorf("%v", err)
		}
	}
	if list, err := h.m.Devices(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("%v %v", list, err)
	}
	id := h.id(rdmacm.PSTCP)
	if err := id.Bind(netip.AddrPortFrom(h.addr, 2)); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("%v", err)
	}
	r.b.must(s.Disconnect(t.Context()))
	if e := r.b.event(rdmacm.EventDisconnected); e.Status != -int(syscall.ETIMEDOUT) {
		t.Error(e)
	}
}
