package cm

import (
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// One manager connects to itself: over its address, IPv6 with a scope, and loopback.
func TestCase97_OneManager(t *testing.T) {
	for _, addr := range []string{"192.0.2.1", "127.0.0.1", "::1", "2001:db8::1", "fe80::1%eth0"} {
		t.Run(addr, func(t *testing.T) {
			a := netip.MustParseAddr(addr)
			r := newRig(t)
			if _, err := r.m.Listen(ListenParams{ServiceID: sidT, Local: a}); err != nil {
				t.Fatal(err)
			}
			loop := func(want mad.AttrID) {
				t.Helper()
				out := r.m.Outgoing()
				if len(out) != 1 || mad.Header(out[0].MAD[:]).AttrID() != want || out[0].Local != a || out[0].Remote != a {
					t.Fatalf("%d messages, want one %v", len(out), want)
				}
				r.m.Receive(r.now, out[0].Remote, out[0].Local, out[0].MAD[:])
			}
			p := reqParams()
			p.Local, p.Remote = a, a
			active, err := r.m.Connect(r.now, p)
			r.ok(err)
			loop(mad.AttrREQ)
			e := r.events(EventREQReceived)[0]
			passive := e.Conn
			info, _, err := SplitPrivate(e.PrivateData)
			if err != nil || info.Src != a.WithZone("") || info.Dst != info.Src || e.Peer.LocalGID != ib.GIDFromAddr(a) || e.Peer.RemoteGID != e.Peer.LocalGID {
				t.Fatal(info, err, e.Peer)
			}
			if active == passive || active.Passive() || !passive.Passive() || passive.Local() != a || passive.Remote() != a ||
				passive.RemoteCommID() != active.LocalCommID() || passive.ServiceID() != sidT {
				t.Fatal(active, passive)
			}
			q := repParams()
			q.QPN = 0x12
			r.ok(r.m.Accept(r.now, passive, q))
			loop(mad.AttrREP)
			r.events(EventREPReceived)
			r.ok(r.m.RTU(r.now, active, nil))
			loop(mad.AttrRTU)
			r.events(EventRTUReceived)
			if r.m.Conns() != 2 {
				t.Fatal(r.m.Conns())
			}
			r.ok(r.m.Disconnect(r.now, passive, nil))
			loop(mad.AttrDREQ)
			r.events(EventDREQReceived)
			r.ok(r.m.SendDREP(r.now, active, nil))
			loop(mad.AttrDREP)
			r.events(EventDREPReceived)
			r.state(active, StateTimewait)
			r.state(passive, StateTimewait)
			c := r.m.Counters()
			if c.Rx(mad.AttrREQ) != 1 || c.Tx(mad.AttrDREP) != 1 || c.Retries(mad.AttrREQ) != 0 {
				t.Fatalf("%+v", c)
			}
		})
	}
}

// Names are the standard's; unknown values do not panic.
func TestNames(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{StateMRARepRcvd.String(), "MRA_REP_RCVD"},
		{State(99).String(), "State(99)"},
		{EventSIDRREPReceived.String(), "SIDR_REP_RECEIVED"},
		{EventKind(0).String(), "EventKind(0)"},
		{EventKind(99).String(), "EventKind(99)"},
		{DropBacklog.String(), "backlog"},
		{Drop(99).String(), "unknown"},
	} {
		if c.got != c.want {
			t.Error(c.got, c.want)
		}
	}
}
