package verbs_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// changing is a node whose interface the test changes.
type changing struct {
	*node
	now    soft.Netdev
	report func(soft.Netdev)
	ended  bool
}

// changingRig is a rig whose first node can change. The last of chosen addresses
// is none of the interface.
func changingRig(t *testing.T, fixed bool, addrs ...string) (*rig, *changing) {
	t.Helper()
	r := &rig{t: t, net: simnet.New(1)}
	r.b = r.node("b", 9000, "192.0.2.2", "2001:db8::2")
	c := &changing{node: &node{t: t, net: r.net, port: r.net.NewPort(simnet.Config{}), addr: netip.MustParseAddr(addrs[0])}}
	c.now = soft.Netdev{Up: true, Enabled: true, MTU: 9000}
	for _, a := range addrs {
		c.now.Addrs = append(c.now.Addrs, netip.MustParseAddr(a))
	}
	chosen := c.now.Addrs
	if fixed {
		c.now.Addrs = chosen[:len(chosen)-1]
	}
	var err error
	c.soft, err = soft.NewDevice(soft.Config{
		Name: "a", NetDev: "eth7", IfIndex: 7, LinkMTU: 9000, Port: c.port, Clock: r.net.Now, Seed: 1, Manual: true,
		Addrs: chosen, FixedAddrs: fixed, Watch: func(report func(soft.Netdev)) (func(), error) {
			c.report = report
			report(c.now)
			return func() { c.ended = true }, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	r.net.Attach(c.port, c.soft.Turn)
	c.ctx = verbs.NewContext(c.soft)
	c.pd = ok(c.ctx.AllocPD())(t)
	c.cq = ok(c.ctx.CreateCQ(1024, nil, nil))(t)
	t.Cleanup(func() {
		c.close()
		if !c.ended {
			t.Error("the device is closed, its interface is still watched")
		}
	})
	r.a = c.node
	return r, c
}

// addrs changes the interface's addresses.
func (c *changing) addrs(list ...string) {
	c.now.Addrs = nil
	for _, a := range list {
		c.now.Addrs = append(c.now.Addrs, netip.MustParseAddr(a))
	}
	c.report(c.now)
}

// table is the device's GID table up to the last entry; "" is an empty one.
func (c *changing) table() (list []string) {
	c.t.Helper()
	for i := range 8 {
		e, err := c.ctx.QueryGIDEntry(1, i)
		switch {
		case errors.Is(err, ib.ErrNoData):
			list = append(list, "")
			continue
		case err != nil:
			c.t.Fatal(err)
		case e.Index != i || e.NetDev != "eth7" || e.IfIndex != 7 || e.Port != 1 || e.Type != ib.GIDTypeRoCEv2:
			c.t.Errorf("entry %d: %+v", i, e)
		}
		list = append(list, e.GID.Addr().String())
	}
	for len(list) > 0 && list[len(list)-1] == "" {
		list = list[:len(list)-1]
	}
	return list
}

func (c *changing) wantTable(want ...string) {
	c.t.Helper()
	if got := c.table(); !slices.Equal(got, want) {
		c.t.Errorf("GID table %q, want %q", got, want)
	}
}

// ack takes the next event, which must be of the type, and acknowledges it.
func (c *changing) ack(typ ib.EventType) {
	c.t.Helper()
	e := c.event(typ)
	switch typ {
	case ib.EventGIDChange, ib.EventPortActive, ib.EventPortErr:
		if e.Port != 1 {
			c.t.Errorf("%v: port %d", typ, e.Port)
		}
	}
	e.Ack()
}

// TestCase76_AddressesFollowTheInterface: what is added goes to the first empty
// entry, what is removed leaves one, nothing else moves, and each batch of
// changes is one GID_CHANGE.
func TestCase76_AddressesFollowTheInterface(t *testing.T) {
	_, c := changingRig(t, false, "192.0.2.1", "2001:db8::1", "fe80::1%eth7")
	c.wantTable("192.0.2.1", "2001:db8::1", "fe80::1")
	c.noEvent() // what it was opened with is no change

	c.addrs("192.0.2.1", "2001:db8::1", "fe80::1%eth7", "192.0.2.9")
	c.wantTable("192.0.2.1", "2001:db8::1", "fe80::1", "192.0.2.9")
	c.ack(ib.EventGIDChange)
	c.addrs("192.0.2.9", "fe80::1%eth7", "192.0.2.1")
	c.wantTable("192.0.2.1", "", "fe80::1", "192.0.2.9")
	c.ack(ib.EventGIDChange)
	// Order alone is no change.
	c.addrs("192.0.2.1", "fe80::1%eth7", "192.0.2.9")
	c.noEvent()
	// Two come and one goes: one event, and the emptied entry is used.
	c.addrs("fe80::1%eth7", "192.0.2.9", "192.0.2.10", "2001:db8::7")
	c.wantTable("192.0.2.10", "2001:db8::7", "fe80::1", "192.0.2.9")
	c.ack(ib.EventGIDChange)
	c.addrs()
	c.wantTable()
	c.ack(ib.EventGIDChange)
	if _, err := c.ctx.QueryGID(1, 0); !errors.Is(err, ib.ErrNoData) {
		t.Error(err)
	}
	c.addrs("2001:db8::1")
	c.wantTable("2001:db8::1")
	c.ack(ib.EventGIDChange)
	c.noEvent()
}

// More addresses than entries: those that do not fit wait for an empty one.
func TestGIDTableFull(t *testing.T) {
	_, c := changingRig(t, false, "192.0.2.1")
	var list []string
	for i := range 300 {
		list = append(list, netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}).String())
	}
	c.addrs(list...)
	c.ack(ib.EventGIDChange)
	gids := ok(c.ctx.QueryGIDTable())(t)
	if len(gids) != 256 || gids[0].GID.Addr().String() != "10.0.0.0" || gids[255].GID.Addr().String() != "10.0.0.255" {
		t.Fatal(len(gids), gids[0], gids[len(gids)-1])
	}
	c.addrs(list[1:]...)
	c.ack(ib.EventGIDChange)
	if g := ok(c.ctx.QueryGID(1, 0))(t); g.Addr().String() != "10.0.1.0" {
		t.Error(g)
	}
	c.noEvent()
}

// A table that somebody has chosen gets no other address; its own leave and
// return to where they were. Those that the interface never had stay.
func TestChosenAddressesFollow(t *testing.T) {
	_, c := changingRig(t, true, "192.0.2.1", "192.0.2.3", "198.51.100.1")
	c.addrs("192.0.2.1", "192.0.2.3") // and never the third, which the host has by a route
	c.noEvent()
	c.addrs("192.0.2.3", "192.0.2.77")
	c.wantTable("", "192.0.2.3", "198.51.100.1")
	c.ack(ib.EventGIDChange)
	ah := ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(netip.MustParseAddr("192.0.2.2")), PortNum: 1}
	if _, err := c.pd.CreateAH(&ah); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("address handle from an empty entry: %v", err)
	}
	c.addrs("192.0.2.1", "192.0.2.77")
	c.wantTable("192.0.2.1", "", "198.51.100.1")
	c.ack(ib.EventGIDChange)
	// The loopback interface has whole networks.
	c.now.Local = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	c.addrs()
	c.wantTable("192.0.2.1", "192.0.2.3", "198.51.100.1")
	c.ack(ib.EventGIDChange)
	c.noEvent()
}

// The table may change under queue pairs: those on an address that left keep
// their addressing, and go on when it returns. New ones find the entry empty.
func TestQueuePairOnRemovedAddress(t *testing.T) {
	r, c := changingRig(t, false, "192.0.2.1")
	qa, qb := r.pair(ib.RC)
	src, dst := r.a.mem(8), r.b.mem(8)
	exchange := func() {
		t.Helper()
		if err := errors.Join(
			qb.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{dst.SGE(0, 8)}}),
			qa.PostSendOne(&verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 8)}}),
		); err != nil {
			t.Fatal(err)
		}
		if wc := r.wcs(r.a.cq, 1); wc[0].Status != ib.WCSuccess {
			t.Fatal(wc)
		}
		r.wcs(r.b.cq, 1)
	}
	exchange()
	c.addrs()
	c.ack(ib.EventGIDChange)
	q := r.a.qp(r.a.attr(ib.RC))
	r.a.to(q, ib.QPStateInit, nil, r.b.addr)
	if err := q.Modify(&ib.QPAttr{
		QPState: ib.QPStateRTR, PathMTU: ib.MTU1024, MaxDestRDAtomic: 1, MinRNRTimer: 1, DestQPN: 77,
		AHAttr: ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), PortNum: 1},
	}, ib.QPAttrState|ib.QPAttrMaxDestRDAtomic|ib.QPAttrMinRNRTimer|ib.QPAttrAV|ib.QPAttrPathMTU|ib.QPAttrDestQPN|ib.QPAttrRQPSN); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("RTR from an empty entry: %v", err)
	}
	c.addrs("192.0.2.1")
	c.ack(ib.EventGIDChange)
	exchange()
}

// A datagram queue pair receives on addresses that come later too.
func TestDatagramsOnNewAddress(t *testing.T) {
	r, c := changingRig(t, false, "192.0.2.1")
	ua, ub := r.pair(ib.UD)
	c.addrs("192.0.2.1", "192.0.2.50")
	c.ack(ib.EventGIDChange)
	src, dst := r.b.mem(8), r.a.mem(64)
	ah := ok(r.b.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(netip.MustParseAddr("192.0.2.50")), PortNum: 1}))(t)
	r.b.later(ah.Destroy)
	if err := errors.Join(
		ua.PostRecvOne(&verbs.RecvWR{WRID: 5, SGList: []verbs.SGE{dst.SGE(0, 64)}}),
		ub.PostSendOne(&verbs.SendWR{
			Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{src.SGE(0, 8)},
			AH: ah, RemoteQPN: ua.Num(), RemoteQKey: qkey,
		}),
	); err != nil {
		t.Fatal(err)
	}
	if wc := r.wcs(r.a.cq, 1)[0]; wc.Status != ib.WCSuccess || wc.WRID != 5 {
		t.Error(wc)
	}
	r.wcs(r.b.cq, 1)
}

// The port goes down and comes back with the link. Addresses that leave and
// return at the same time are told in the order in which they can be used.
func TestPortFollowsTheLink(t *testing.T) {
	_, c := changingRig(t, false, "192.0.2.1", "2001:db8::1")
	port := func(state ib.PortState, phys ib.PortPhysState, mtu ib.MTU) {
		t.Helper()
		if p := ok(c.ctx.QueryPort(1))(t); p.State != state || p.PhysState != phys || p.ActiveMTU != mtu || p.MaxMTU != ib.MTU4096 {
			t.Errorf("%v, %v, active MTU %v", p.State, p.PhysState, p.ActiveMTU)
		}
	}
	port(ib.PortActive, ib.PhysLinkUp, ib.MTU4096)
	c.now.Up = false // no carrier
	c.report(c.now)
	port(ib.PortDown, ib.PhysPolling, ib.MTU4096)
	c.ack(ib.EventPortErr)
	c.now.Enabled = false
	c.report(c.now)
	port(ib.PortDown, ib.PhysDisabled, ib.MTU4096)
	c.noEvent() // it was down before
	c.now.Up, c.now.Enabled = true, true
	c.report(c.now)
	port(ib.PortActive, ib.PhysLinkUp, ib.MTU4096)
	c.ack(ib.EventPortActive)
	// Linux takes IPv6 addresses away from an interface that is set down.
	c.now.Up, c.now.Enabled = false, false
	c.addrs("192.0.2.1")
	c.ack(ib.EventPortErr)
	c.ack(ib.EventGIDChange)
	c.now.Up, c.now.Enabled = true, true
	c.addrs("192.0.2.1", "2001:db8::1")
	c.ack(ib.EventGIDChange)
	c.ack(ib.EventPortActive)
	c.noEvent()
}

// The active MTU follows the link's. A path MTU beyond it is refused from then
// on; queue pairs that have one keep it.
func TestMTUFollowsTheLink(t *testing.T) {
	r, c := changingRig(t, false, "192.0.2.1")
	r.a.mtu, r.b.mtu = ib.MTU4096, ib.MTU4096
	old, _ := r.pair(ib.RC)
	c.now.MTU = 1500
	c.report(c.now)
	if p := ok(c.ctx.QueryPort(1))(t); p.ActiveMTU != ib.MTU1024 {
		t.Error(p.ActiveMTU)
	}
	c.noEvent() // no device tells of it by an event
	if a, _, err := old.Query(); err != nil || a.PathMTU != ib.MTU4096 || a.QPState != ib.QPStateRTS {
		t.Error(a.PathMTU, a.QPState, err)
	}
	q := r.a.qp(r.a.attr(ib.RC))
	r.a.to(q, ib.QPStateInit, nil, r.b.addr)
	attr := ib.QPAttr{
		QPState: ib.QPStateRTR, PathMTU: ib.MTU2048, MaxDestRDAtomic: 1, MinRNRTimer: 1, DestQPN: 77,
		AHAttr: ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), PortNum: 1},
	}
	mask := ib.QPAttrState | ib.QPAttrMaxDestRDAtomic | ib.QPAttrMinRNRTimer | ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
	if err := q.Modify(&attr, mask); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("path MTU 2048 on a link of 1500: %v", err)
	}
	attr.PathMTU = ib.MTU1024
	if err := q.Modify(&attr, mask); err != nil {
		t.Error(err)
	}
	// A datagram queue pair takes the port's MTU as it is when it begins.
	early := r.a.qp(r.a.attr(ib.UD))
	c.now.MTU = 2500
	c.report(c.now)
	r.a.to(early, ib.QPStateRTS, nil, r.b.addr)
	src := r.a.mem(4096)
	ah := ok(r.a.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), PortNum: 1}))(t)
	r.a.later(ah.Destroy)
	for _, n := range []int{2048, 2049} {
		if err := early.PostSendOne(&verbs.SendWR{
			Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{src.SGE(0, n)}, AH: ah, RemoteQPN: 77, RemoteQKey: qkey,
		}); err != nil {
			t.Fatal(err)
		}
	}
	if s := statuses(r.wcs(r.a.cq, 2)); !slices.Equal(s, []ib.WCStatus{ib.WCSuccess, ib.WCLocLenErr}) {
		t.Error(s)
	}
}

// TestCase72_DeviceRemoved: the interface goes away under a running device.
// DEVICE_FATAL comes once and first, work is flushed, calls that need the device
// and reads of events that will never come give EIO, and everything closes.
func TestCase72_DeviceRemoved(t *testing.T) {
	var dev *verbs.Context
	t.Cleanup(func() { // when everything is closed
		_, err := dev.GetAsyncEvent(context.Background())
		if !errors.Is(err, net.ErrClosed) || !errors.Is(err, syscall.EIO) {
			t.Errorf("event of a closed device: %v", err)
		}
	})
	r, c := changingRig(t, false, "192.0.2.1")
	dev = c.ctx
	srq := r.a.srq(&ib.SRQAttr{MaxWR: 4})
	attr := r.a.attr(ib.RC)
	attr.SRQ = srq
	shared, _ := r.connect(attr, r.b.attr(ib.RC))
	rc, peer := r.pair(ib.RC)
	ud, _ := r.pair(ib.UD)
	fresh := r.a.qp(r.a.attr(ib.RC))
	mem := r.a.mem(64)
	ch := ok(c.ctx.CreateCompChannel())(t)
	cq := ok(c.ctx.CreateCQ(4, ch, nil))(t)
	r.a.later(ch.Destroy)
	r.a.later(cq.Destroy)
	ah := ok(c.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), PortNum: 1}))(t)
	r.a.later(ah.Destroy)
	for r.net.Step() { // COMM_EST of nobody: nothing was sent
	}
	// Two sends that wait for the peer's receive requests, and two receives.
	for i := range 2 {
		if err := errors.Join(
			rc.PostSendOne(&verbs.SendWR{WRID: uint64(i), Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{mem.SGE(0, 8)}}),
			rc.PostRecvOne(&verbs.RecvWR{WRID: 10 + uint64(i), SGList: []verbs.SGE{mem.SGE(8, 8)}}),
		); err != nil {
			t.Fatal(err)
		}
	}
	if c.ctx.Removed() {
		t.Error("removed before")
	}
	c.report(soft.Netdev{Gone: true})
	c.report(soft.Netdev{Gone: true})
	c.report(c.now) // nothing brings it back
	if !c.ctx.Removed() {
		t.Error("not removed")
	}
	// The events: the device's first, then what follows from it, then EIO.
	c.ack(ib.EventDeviceFatal)
	if e := c.event(ib.EventQPLastWQEReached); e.QP != shared {
		t.Error(e)
	} else {
		e.Ack()
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{t.Context(), done} {
		if _, err := c.ctx.GetAsyncEvent(ctx); !errors.Is(err, syscall.EIO) || errors.Is(err, net.ErrClosed) {
			t.Errorf("event after the last: %v", err)
		}
		if _, err := ch.GetCQEvent(ctx); !errors.Is(err, syscall.EIO) {
			t.Errorf("notification: %v", err)
		}
	}
	// The work.
	var ids []uint64
	for _, wc := range r.wcs(r.a.cq, 4) {
		ids = append(ids, wc.WRID)
		if wc.Status != ib.WCWRFlushErr || wc.QPNum != rc.Num() {
			t.Errorf("%+v", wc)
		}
	}
	if !slices.Equal(ids, []uint64{0, 1, 10, 11}) {
		t.Error(ids)
	}
	for q, want := range map[*verbs.QP]ib.QPState{rc: ib.QPStateErr, ud: ib.QPStateErr, shared: ib.QPStateErr, fresh: ib.QPStateReset} {
		if q.State() != want {
			t.Errorf("%v is in %v, want %v", q.Type(), q.State(), want)
		}
	}
	if err := rc.PostSendOne(&verbs.SendWR{WRID: 3, Opcode: ib.WRSend}); err != nil {
		t.Error(err)
	}
	if wc := r.wcs(r.a.cq, 1)[0]; wc.WRID != 3 || wc.Status != ib.WCWRFlushErr {
		t.Error(wc)
	}
	for _, q := range []*verbs.QP{rc, ud} {
		if err := q.Drain(t.Context(), func(wcs []verbs.WC) { t.Errorf("%v: %v", q.Type(), wcs) }); err != nil {
			t.Error(err)
		}
	}
	// The calls.
	for what, call := range map[string]func() error{
		"query_device": func() error { _, err := c.ctx.QueryDevice(); return err },
		"query_port":   func() error { _, err := c.ctx.QueryPort(1); return err },
		"query_gid":    func() error { _, err := c.ctx.QueryGID(1, 0); return err },
		"gid table":    func() error { _, err := c.ctx.QueryGIDTable(); return err },
		"find_gid":     func() error { _, err := c.ctx.FindGIDIndex(1, ib.GID{1}, ib.GIDTypeRoCEv2); return err },
		"query_pkey":   func() error { _, err := c.ctx.QueryPKey(1, 0); return err },
		"alloc_pd":     func() error { _, err := c.ctx.AllocPD(); return err },
		"reg_mr":       func() error { _, err := c.pd.RegMR(make([]byte, 8), 0); return err },
		"create_cq":    func() error { _, err := c.ctx.CreateCQ(1, nil, nil); return err },
		"create_srq":   func() error { _, err := c.pd.CreateSRQ(&ib.SRQAttr{MaxWR: 1}, nil); return err },
		"create_qp":    func() error { _, err := c.pd.CreateQP(r.a.attr(ib.RC)); return err },
		"create_ah": func() error {
			_, err := c.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GID{1}, PortNum: 1})
			return err
		},
		"modify_qp": func() error {
			return fresh.Modify(&ib.QPAttr{QPState: ib.QPStateInit, PortNum: 1}, ib.QPAttrState|ib.QPAttrPort|ib.QPAttrPKeyIndex|ib.QPAttrAccessFlags)
		},
	} {
		if err := call(); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v, want EIO", what, err)
		}
	}
	// What needs no device works, to take things down.
	for _, s := range []ib.QPState{ib.QPStateErr, ib.QPStateReset} {
		if err := rc.Modify(&ib.QPAttr{QPState: s}, ib.QPAttrState); err != nil {
			t.Error(s, err)
		}
	}
	// The peer hears nothing more.
	if err := peer.PostSendOne(&verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled}); err != nil {
		t.Fatal(err)
	}
	if wc := r.wcs(r.b.cq, 1)[0]; wc.Status != ib.WCRetryExcErr {
		t.Error(wc)
	}
}

// Readers that wait when the device goes away end with EIO, each after the last
// event.
func TestCase72_RemovalEndsWaitingReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := changingRig(t, false, "192.0.2.1")
		ch := ok(c.ctx.CreateCompChannel())(t)
		c.later(ch.Destroy)
		const readers = 3
		events, ends := make(chan ib.EventType, readers), make(chan error, readers+2)
		for range readers {
			go func() {
				for {
					e, err := c.ctx.GetAsyncEvent(context.Background())
					if err != nil {
						ends <- err
						return
					}
					events <- e.Type
					e.Ack()
				}
			}()
		}
		go func() { _, err := ch.GetCQEvent(context.Background()); ends <- err }()
		go func() { ends <- c.cq.Wait(context.Background()) }()
		synctest.Wait()
		c.report(soft.Netdev{Gone: true})
		for range readers + 2 {
			if err := <-ends; !errors.Is(err, syscall.EIO) {
				t.Error(err)
			}
		}
		if len(events) != 1 || <-events != ib.EventDeviceFatal {
			t.Error("not exactly one DEVICE_FATAL")
		}
	})
}

// The device goes away after each step of an exchange of every kind: all work
// completes, what succeeded did so before what failed, and nothing is left.
func TestRemovalAtEveryPoint(t *testing.T) {
	for step := 0; ; step++ {
		r, c := changingRig(t, false, "192.0.2.1")
		qa, qb := r.pair(ib.RC)
		uc, ud := r.uncon(ib.UC), r.uncon(ib.UD)
		src, dst := r.a.mem(32<<10), r.b.mem(32<<10)
		ah := ok(r.a.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), PortNum: 1}))(t)
		r.a.later(ah.Destroy)
		sge := []verbs.SGE{src.SGE(0, 10000)}
		word := []verbs.SGE{src.SGE(0, 8)}
		const work = 8
		receive(t, qb)
		receive(t, qa)
		post(t, qa, verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled})
		post(t, qa, verbs.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: sge, RemoteAddr: dst.Addr(), RKey: dst.RKey()})
		post(t, qa, verbs.SendWR{Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGList: sge, RemoteAddr: dst.Addr(), RKey: dst.RKey()})
		post(t, qa, verbs.SendWR{Opcode: ib.WRAtomicFetchAndAdd, Flags: ib.SendSignaled, SGList: word, RemoteAddr: dst.Addr(), RKey: dst.RKey()})
		post(t, qa, verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: word}) // waits for a receive request
		post(t, uc, verbs.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: sge, RemoteAddr: dst.Addr(), RKey: dst.RKey()})
		post(t, ud, verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: word, AH: ah, RemoteQPN: 77, RemoteQKey: qkey})
		r.net.Kick(r.a.port)
		r.net.Kick(r.b.port)
		begin := r.net.Now()
		for range step {
			r.net.Step()
		}
		end := r.net.Now()-begin > 5e6 // after everything that succeeds
		c.report(soft.Netdev{Gone: true})
		failed := map[uint32]bool{}
		for _, wc := range r.wcs(r.a.cq, work) {
			n := uint32(wc.QPNum)
			first := !failed[n]
			if failed[n] = failed[n] || wc.Status != ib.WCSuccess; failed[n] && wc.Status != ib.WCWRFlushErr &&
				!(first && wc.Status == ib.WCRNRRetryExcErr) { // had ended before
				t.Errorf("step %d: %+v", step, wc)
			}
		}
		if n, err := r.a.cq.Poll(make([]verbs.WC, 1)); n != 0 || err != nil {
			t.Errorf("step %d: one completion too many, or %v", step, err)
		}
		r.quietly()
		for _, q := range append(r.a.qps, r.b.qps...) {
			if err := q.Destroy(); err != nil {
				t.Error(err)
			}
		}
		r.a.drop()
		r.b.drop()
		if err := c.soft.Busy(); err != nil {
			t.Errorf("step %d: %v", step, err)
		}
		if t.Failed() || end || step > 400 {
			t.Logf("%d steps", step)
			return
		}
	}
}

// uncon is a queue pair of a that sends to nobody.
func (r *rig) uncon(typ ib.QPType) *verbs.QP {
	q := r.a.qp(r.a.attr(typ))
	r.a.to(q, ib.QPStateRTS, q, r.b.addr)
	return q
}

// quietly lets the peer's retries come to an end.
func (r *rig) quietly() { r.net.RunFor(2e9) }
