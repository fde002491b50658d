package soft

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// gsiRig is two simulated devices of which b serves its queue pair 1.
type gsiRig struct {
	net   *simnet.Net
	a, b  *Device
	told  int
	agent driver.MADAgent
}

var gsiA, gsiB = netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")

func newGSIRig(t *testing.T) *gsiRig {
	r := &gsiRig{net: simnet.New(1)}
	dev := func(addrs ...netip.Addr) *Device {
		p := r.net.NewPort(simnet.Config{})
		d, err := NewDevice(Config{Name: "d" + addrs[0].String(), Addrs: addrs, Port: p, Clock: r.net.Now, Seed: 1, Manual: true})
		if err != nil {
			t.Fatal(err)
		}
		r.net.Attach(p, d.Turn)
		t.Cleanup(func() { d.Close() })
		return d
	}
	r.a, r.b = dev(gsiA, netip.MustParseAddr("2001:db8::1")), dev(gsiB, netip.MustParseAddr("2001:db8::2"))
	var err error
	if r.agent, err = r.b.OpenMAD(func() { r.told++ }); err != nil {
		t.Fatal(err)
	}
	return r
}

// A datagram comes out as it was sent, over both families, and looks as it must on the wire.
func TestMADs(t *testing.T) {
	r := newGSIRig(t)
	a, err := r.a.OpenMAD(func() {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.a.OpenMAD(func() {}); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a second one: %v", err)
	}
	if err := r.agent.Listen(gsiA); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("another's address: %v", err)
	}
	if err := r.agent.ListenAll(); err != nil {
		t.Fatal(err)
	}
	seen := 0
	r.net.Sniff(func(e *simnet.Event) {
		seen++
		d := roce.DETH(e.B[roce.BTHLen:])
		if e.Op != roce.OpUDSendOnly || e.BTH.DestQP() != 1 || e.BTH.PKey() != 0xFFFF || d.QKey() != 0x80010000 || d.SrcQP() != 1 || len(e.Payload) != 256 {
			t.Errorf("on the wire: % x", e.B)
		}
	})
	for _, c := range [][2]string{{"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8::2"}} {
		m := driver.MAD{Local: netip.MustParseAddr(c[0]), Remote: netip.MustParseAddr(c[1]), TrafficClass: 8, HopLimit: 9}
		for i := range m.Data {
			m.Data[i] = byte(i)
		}
		if err := a.Send(&m); err != nil {
			t.Fatal(err)
		}
		r.net.RunFor(1e9)
		var got driver.MAD
		if !r.agent.Recv(&got) || got.Local != m.Remote || got.Remote != m.Local || got.TrafficClass != 8 || got.HopLimit != 9 || got.Data != m.Data {
			t.Errorf("received %+v", got)
		}
		if r.agent.Recv(&got) {
			t.Error("received twice")
		}
	}
	if seen != 2 || r.told != 2 {
		t.Errorf("%d packets, told %d times", seen, r.told)
	}
}

// What queue pair 1 does not take is dropped and counted; so is what nobody fetches.
func TestMADsDropped(t *testing.T) {
	r := newGSIRig(t)
	a, err := r.a.OpenMAD(func() {})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.agent.Listen(gsiB); err != nil {
		t.Fatal(err)
	}
	m := driver.MAD{Local: gsiA, Remote: gsiB}
	for range 1030 {
		if err := a.Send(&m); err != nil {
			t.Fatal(err)
		}
		r.net.RunFor(10e3)
	}
	r.net.RunFor(1e9)
	if st := r.b.Stats(); st.DropGSI != 6 || r.told != 1 {
		t.Errorf("%d dropped, told %d times", st.DropGSI, r.told)
	}
	send := func(size int, edit func(b roce.BTH, d roce.DETH)) {
		b := make([]byte, roce.BTHLen+roce.DETHLen+size, roce.BTHLen+roce.DETHLen+size+4)
		roce.BTH(b).Put(roce.OpUDSendOnly, false, 0, 0xFFFF, 1, true, 0)
		roce.DETH(b[roce.BTHLen:]).Put(0x80010000, 1)
		edit(roce.BTH(b), roce.DETH(b[roce.BTHLen:]))
		src := netip.AddrPortFrom(gsiA, 50000)
		path := roce.NewPath(gsiA, gsiB, 50000)
		b = b[:len(b)+roce.ICRCLen]
		roce.PutICRC(b[len(b)-roce.ICRCLen:], path.Compute(b, 0))
		r.net.Inject(src, gsiB, b, 0)
		r.net.RunFor(1e6)
	}
	for range 10 {
		r.agent.Recv(&m)
	}
	before := r.b.Stats()
	send(256, func(roce.BTH, roce.DETH) {}) // AckReq is set, as Linux does
	send(256, func(_ roce.BTH, d roce.DETH) { d.Put(0x80010001, 1) })
	send(256, func(_ roce.BTH, d roce.DETH) { d.Put(0x80010000, 17) })
	send(256, func(b roce.BTH, _ roce.DETH) { b.Put(roce.OpUDSendOnly, false, 0, 0x1234, 1, false, 0) })
	send(252, func(roce.BTH, roce.DETH) {})
	st := r.b.Stats()
	got := []uint64{st.RcvdPackets - before.RcvdPackets, st.DropQKey - before.DropQKey, st.DropGSI - before.DropGSI, st.DropPKey - before.DropPKey, st.DropLength - before.DropLength}
	for i, n := range got {
		if n != 1 {
			t.Errorf("counters %v, want 1 each (%d)", got, i)
		}
	}
	if err := r.agent.Close(); err != nil {
		t.Fatal(err)
	}
	send(256, func(roce.BTH, roce.DETH) {})
	if n := r.b.Stats().DropGSI - st.DropGSI; n != 1 {
		t.Errorf("%d dropped after Close", n)
	}
}
