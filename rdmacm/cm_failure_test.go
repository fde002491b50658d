package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// A local failure after the peer has accepted: CONNECT_ERROR here, REJECTED there.
func TestConnectError(t *testing.T) {
	r := newCMRig(t)
	r.b.listen(rdmacm.PSTCP, r.b.at(), 0)
	c := r.a.active(rdmacm.PSTCP, r.b.at())
	r.a.must(c.Connect(t.Context(), nil))
	s := r.b.event(rdmacm.EventConnectRequest).ID
	r.b.must(s.CreateQP(nil, cmAttr()))
	r.b.must(s.Accept(t.Context(), nil))
	r.a.must(c.QP().Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState)) // by the application's own doing
	if e := r.a.event(rdmacm.EventConnectError); e.Status != -int(syscall.EINVAL) || !errors.Is(e.Err(), syscall.EINVAL) {
		t.Error(e)
	}
	if e := r.b.event(rdmacm.EventRejected); e.ID != s || e.Status != int(rdmacm.RejectConsumer) {
		t.Error(e)
	}
	r.a.must(c.Disconnect(t.Context()))
	r.b.must(s.Disconnect(t.Context()))
	r.a.none(20e9)
	r.b.none(20e9)
}

// The answer is not confirmed: UNREACHABLE on the passive side, and REJECTED with reason 4
// on the active one if it hears of it.
func TestConfirmationLost(t *testing.T) {
	r := newCMRig(t)
	r.b.listen(rdmacm.PSTCP, r.b.at(), 0)
	c := r.a.active(rdmacm.PSTCP, r.b.at())
	r.a.must(c.Connect(t.Context(), nil))
	s := r.b.event(rdmacm.EventConnectRequest).ID
	r.net.SetPartition(r.a.addr, r.b.addr, true)
	r.b.must(s.CreateQP(nil, cmAttr()))
	r.b.must(s.Accept(t.Context(), nil))
	if e := r.b.event(rdmacm.EventUnreachable); e.ID != s || e.Status != -int(syscall.ETIMEDOUT) {
		t.Error(e)
	}
	if e := r.a.event(rdmacm.EventUnreachable); e.ID != c {
		t.Error(e)
	}
}

// Addresses that cannot be resolved: the event tells, and the ID can try again.
func TestAddrError(t *testing.T) {
	r := newCMRig(t)
	h := r.host("c", 3, "192.0.2.3")
	id := h.id(rdmacm.PSTCP)
	h.must(id.ResolveAddr(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort("[2001:db8::2]:1"), 0))
	if e := h.event(rdmacm.EventAddrError); e.Status != -int(syscall.ENETUNREACH) {
		t.Error(e)
	}
	h.must(id.ResolveAddr(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort("[::]:1"), 0))
	if e := h.event(rdmacm.EventAddrError); e.Status != -int(syscall.ENODEV) {
		t.Error(e)
	}
	if id.PD() != nil || id.Verbs() != nil {
		t.Error("bound to a device")
	}
	id = h.id(rdmacm.PSTCP)
	h.must(id.ResolveAddr(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort("0.0.0.0:5"), 0)) // this host
	h.event(rdmacm.EventAddrResolved)
	if id.PeerAddr() != netip.MustParseAddrPort("192.0.2.3:5") {
		t.Error(id.PeerAddr())
	}
}

// Other types of queue pairs connect to their like and to no other.
func TestTypes(t *testing.T) {
	for _, c := range []struct {
		ps         rdmacm.PortSpace
		from, to   ib.QPType
		refused    int
		refusedUDP bool
	}{
		{rdmacm.PSTCP, ib.UC, ib.UC, 0, false},
		{rdmacm.PSIB, ib.RC, ib.RC, 0, false},
		{rdmacm.PSTCP, ib.UC, ib.RC, 28, false},
		{rdmacm.PSIB, ib.RC, ib.XRCRecv, 28, false},
		{rdmacm.PSIB, ib.RC, ib.UD, 28, false},
		{rdmacm.PSIB, ib.UD, ib.RC, 2, true},
	} {
		r := newCMRig(t)
		l := cmOK(r.b.m.NewIDType(r.b.ch, c.ps, c.to, nil))(t)
		r.b.ids = append(r.b.ids, l)
		r.b.must(l.Bind(r.b.at()))
		r.b.must(l.Listen(0))
		id := cmOK(r.a.m.NewIDType(r.a.ch, c.ps, c.from, nil))(t)
		r.a.ids = append(r.a.ids, id)
		r.a.must(id.ResolveAddr(t.Context(), netip.AddrPort{}, r.b.at(), 0))
		r.a.event(rdmacm.EventAddrResolved)
		r.a.must(id.ResolveRoute(t.Context(), 0))
		r.a.event(rdmacm.EventRouteResolved)
		r.a.must(id.CreateQP(nil, cmAttr()))
		r.a.must(id.Connect(t.Context(), nil))
		if c.refused != 0 {
			want := rdmacm.EventRejected
			if c.refusedUDP {
				want = rdmacm.EventUnreachable
			}
			if e := r.a.event(want); e.Status != c.refused {
				t.Errorf("%+v: %v", c, e)
			}
			r.b.none(1e9)
			continue
		}
		s := r.b.event(rdmacm.EventConnectRequest).ID
		r.b.must(s.CreateQP(nil, cmAttr()))
		r.b.must(s.Accept(t.Context(), nil))
		r.a.event(rdmacm.EventEstablished)
		r.b.event(rdmacm.EventEstablished)
		r.exchange(id, s)
	}
}

// Requests whose addresses are not what they can be are refused, and nobody hears of
// them.
func TestBadHeaders(t *testing.T) {
	for _, c := range []struct {
		name string
		at   int // in the private data
		b    []byte
		want rdmacm.EventType
	}{
		{"untouched", 0, nil, rdmacm.EventConnectRequest},
		{"version", 0, []byte{0x10}, rdmacm.EventRejected},
		{"IP version", 1, []byte{0x50}, rdmacm.EventRejected},
		{"another family", 1, []byte{0x60}, rdmacm.EventRejected},
		{"for somebody else", 32, []byte{192, 0, 2, 77}, rdmacm.EventRejected},
		{"from nobody", 16, []byte{0, 0, 0, 0}, rdmacm.EventRejected},
		{"from another host than its sender", 16, []byte{192, 0, 2, 66}, rdmacm.EventRejected},
		{"from a group", 16, []byte{239, 0, 0, 1}, rdmacm.EventRejected},
		{"from everybody", 16, []byte{255, 255, 255, 255}, rdmacm.EventRejected},
	} {
		r := newCMRig(t)
		r.b.listen(rdmacm.PSTCP, r.b.at(), 0)
		id := r.a.active(rdmacm.PSTCP, r.b.at())
		var req []byte
		remove := r.net.Filter(func(e *simnet.Event) simnet.Verdict {
			req = slices.Clone(e.B)
			return simnet.Verdict{Drop: true}
		})
		r.a.must(id.Connect(t.Context(), nil))
		remove()
		if req == nil {
			t.Fatal("no request")
		}
		copy(req[12+8+24+140+c.at:], c.b)
		r.inject(r.a.addr, r.b.addr, req)
		if c.want == rdmacm.EventConnectRequest {
			r.b.event(c.want)
			continue
		}
		if e := r.a.event(c.want); e.Status != int(rdmacm.RejectConsumer) {
			t.Errorf("%s: %v", c.name, e)
		}
		r.b.none(1e9)
	}
}

// flaky is a provider of devices of which some fail.
type flaky struct {
	good driver.Device
	err  error
}

func (p *flaky) Devices(context.Context) ([]driver.DeviceInfo, error) {
	return []driver.DeviceInfo{{Name: "bad"}, {Name: "good"}}, nil
}

func (p *flaky) Open(_ context.Context, name string) (driver.Device, error) {
	if name == "bad" || p.good == nil {
		return nil, fmt.Errorf("%s: %w", name, p.err)
	}
	return p.good, nil
}

// A broken device does not hide the others; when all are broken the real cause is told.
func TestCase101_BrokenDevice(t *testing.T) {
	r := newCMRig(t)
	m := rdmacm.NewManager(rdmacm.WithManual(r.net.Now), rdmacm.WithProviders(&flaky{good: r.a.soft, err: syscall.EIO}))
	list, err := m.Devices(t.Context())
	if err != nil || len(list) != 1 || list[0].Driver() != r.a.soft {
		t.Errorf("%v %v", list, err)
	}
	r.a.dead = true // the manager closes the device
	r.a.must(errors.Join(r.a.ch.Close(), r.a.m.Close(), m.Close()))
	for _, want := range []syscall.Errno{syscall.EIO, syscall.EMFILE} {
		m = rdmacm.NewManager(rdmacm.WithManual(r.net.Now), rdmacm.WithProviders(&flaky{err: want}))
		if _, err := m.Devices(t.Context()); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
		ch := cmOK(m.NewEventChannel())(t)
		id := cmOK(m.NewID(ch, rdmacm.PSTCP, nil))(t)
		for _, err := range []error{
			id.Bind(netip.MustParseAddrPort("0.0.0.0:0")), id.Listen(0), id.ResolveAddr(t.Context(), netip.AddrPort{}, r.b.at(), 0),
		} {
			if !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
		r.a.must(errors.Join(id.Destroy(t.Context()), ch.Close(), m.Close()))
	}
}
