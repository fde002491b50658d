package verbs_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

var (
	group4 = netip.MustParseAddr("239.4.79.1")
	group6 = netip.MustParseAddr("ff0e::4791")
	groupL = netip.MustParseAddr("ff02::4791")
)

// listener is a datagram queue pair with room for what it receives.
type listener struct {
	*verbs.QP
	n   *node
	mr  *verbs.MR
	buf []byte
	cq  *verbs.CQ
}

const listenBytes = 128

// listener makes one in RTS with depth receives posted, on queues of its own.
func (n *node) listener(depth int, block bool) *listener {
	n.t.Helper()
	l := &listener{n: n, buf: make([]byte, max(depth, 1)*listenBytes), cq: ok(n.ctx.CreateCQ(64, nil, nil))(n.t)}
	n.later(l.cq.Destroy)
	l.mr = n.memWith(l.buf, ib.AccessLocalWrite)
	a := n.attr(ib.UD)
	a.RecvCQ, a.BlockSelfMcastLB = l.cq, block
	l.QP = n.qp(a)
	n.to(l.QP, ib.QPStateRTS, nil, n.addr)
	for i := range depth {
		l.recv(i, listenBytes)
	}
	return l
}

func (l *listener) recv(i, size int) {
	l.n.t.Helper()
	if err := l.PostRecvOne(&verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{l.mr.SGE(i*listenBytes, size)}}); err != nil {
		l.n.t.Fatal(err)
	}
}

// join attaches it until the test ends.
func (l *listener) join(group netip.Addr) *listener {
	l.n.t.Helper()
	gid := ib.GIDFromAddr(group)
	if err := l.AttachMcast(gid, 0); err != nil {
		l.n.t.Fatal(err)
	}
	l.n.t.Cleanup(func() { // before the node's own
		if err := l.DetachMcast(gid, 0); err != nil && !errors.Is(err, syscall.EINVAL) {
			l.n.t.Error(err)
		}
	})
	return l
}

// got takes what was received, and compares it.
func (l *listener) got(t *testing.T, from *listener, src, group netip.Addr, payload []byte) int {
	t.Helper()
	wcs := make([]verbs.WC, 8)
	n, err := l.cq.Poll(wcs)
	if err != nil {
		t.Fatal(err)
	}
	for _, wc := range wcs[:n] {
		b := l.buf[int(wc.WRID)*listenBytes:][:wc.ByteLen]
		s, d, class, hop, _, grh := roce.ParseGRH(b)
		if wc.Status != ib.WCSuccess || wc.QPNum != l.Num() || wc.SrcQP != from.Num() || wc.Flags&ib.WCGRH == 0 ||
			wc.ImmData != 0x0BADCAFE || !bytes.Equal(b[roce.GRHLen:], payload) {
			t.Errorf("%+v, payload %q", wc, b[roce.GRHLen:])
		}
		if !grh || s != src || d != group || class != 0x28 || hop != 3 {
			t.Errorf("the network header shows %v -> %v, class %#x, hop limit %d", s, d, class, hop)
		}
	}
	return n
}

// toGroup sends one datagram to a group.
func (l *listener) toGroup(r *rig, group netip.Addr, qpn ib.QPN, payload []byte) {
	r.t.Helper()
	a := ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(group), PortNum: 1, HopLimit: 3, TrafficClass: 0x28}
	if group.Is6() {
		a.SGIDIndex = 1
	}
	ah := ok(l.n.pd.CreateAH(&a))(r.t)
	r.post(l.QP, verbs.SendWR{
		Opcode: ib.WRSendWithImm, Flags: ib.SendInline, InlineData: payload, ImmData: 0x0BADCAFE,
		AH: ah, RemoteQPN: qpn, RemoteQKey: qkey,
	})
	r.settle()
	if err := ah.Destroy(); err != nil {
		r.t.Error(err)
	}
}

// newMcastRig is two devices whose queue pairs are spread over some locks.
func newMcastRig(t *testing.T, shards int) *rig {
	r := &rig{t: t, net: simnet.New(1)}
	for i, n := range []**node{&r.a, &r.b} {
		h := &node{t: t, net: r.net, port: r.net.NewPort(simnet.Config{}), addr: netip.MustParseAddr(fmt.Sprintf("192.0.2.%d", i+1))}
		var err error
		h.soft, err = soft.NewDevice(soft.Config{
			Name: string(rune('a' + i)), LinkMTU: 1500, Port: h.port, Clock: r.net.Now, Seed: uint64(i + 1), Manual: true, Shards: shards,
			Addrs: []netip.Addr{h.addr, netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i+1))},
		})
		if err != nil {
			t.Fatal(err)
		}
		r.net.Attach(h.port, h.soft.Turn)
		h.ctx = verbs.NewContext(h.soft)
		h.pd = ok(h.ctx.AllocPD())(t)
		h.cq = ok(h.ctx.CreateCQ(1024, nil, nil))(t)
		t.Cleanup(h.close)
		*n = h
	}
	return r
}

// TestCase27_EachMemberOnce: three queue pairs of one host and one of another
// join a group, one sends; each receives exactly once, the sender unless it was
// created not to, others whatever they were created with. Who joined another
// group, or none, receives nothing.
func TestCase27_EachMemberOnce(t *testing.T) {
	for _, group := range []netip.Addr{group4, group6, groupL} {
		for _, block := range []bool{false, true} {
			for _, shards := range []int{1, 3} {
				t.Run(fmt.Sprintf("%s/block=%v/shards=%d", group, block, shards), func(t *testing.T) {
					r := newMcastRig(t, shards)
					other := group4.Next()
					if group.Is6() {
						other = group6.Next()
					}
					sender := r.a.listener(2, block).join(group)
					second, third := r.a.listener(2, true).join(group), r.a.listener(2, false).join(group).join(group)
					remote := r.b.listener(2, block).join(group)
					elsewhere, nowhere := r.a.listener(2, false).join(other), r.b.listener(2, false)
					for i, from := range []*listener{sender, remote} {
						src := netip.MustParseAddr([]string{"192.0.2.1", "192.0.2.2"}[i])
						if group.Is6() {
							src = netip.MustParseAddr([]string{"2001:db8::1", "2001:db8::2"}[i])
						}
						payload := []byte("to all of " + group.String())
						from.toGroup(r, group, ib.QPNMulticast, payload)
						for _, l := range []*listener{sender, second, third, remote, elsewhere, nowhere} {
							want := 1
							if l == elsewhere || l == nowhere || l == from && block {
								want = 0
							}
							if got := l.got(t, from, src, group, payload); got != want {
								t.Errorf("sender %#x: queue pair %#x received %d copies, want %d", from.Num(), l.Num(), got, want)
							}
						}
					}
					want := uint64(0)
					if block {
						want = 1 // of each of the two that sent
					}
					for _, n := range []*node{r.a, r.b} {
						if c := n.counted(); c["drop_own_multicast"] != want || c["drop_multicast"] != 0 {
							t.Errorf("counted %v", c)
						}
					}
				})
			}
		}
	}
}

// TestCase27_WrongDestination: a group and the number of multicast belong
// together; one without the other reaches nobody.
func TestCase27_WrongDestination(t *testing.T) {
	r := newMcastRig(t, 2)
	sender, l := r.a.listener(0, false), r.b.listener(2, false).join(group4)
	ah := ok(r.a.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(group4), PortNum: 1}))(t)
	r.a.later(ah.Destroy)
	wr := verbs.SendWR{Opcode: ib.WRSend, AH: ah, RemoteQPN: l.Num(), RemoteQKey: qkey}
	if err := sender.PostSendOne(&wr); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "RemoteQPN") {
		t.Errorf("to a member by its own number: %v", err)
	}
	sender.toGroup(r, r.b.addr, ib.QPNMulticast, []byte("x"))                         // its host by everybody's number
	sender.toGroup(r, group4.Next(), ib.QPNMulticast, []byte("x"))                    // another group
	r.net.Inject(netip.AddrPortFrom(r.a.addr, 7), group4, nil, 0)                     // not a packet
	r.net.Inject(netip.AddrPortFrom(r.a.addr, 7), group4, spoilt(ib.QPNMulticast), 0) // with a wrong ICRC
	r.net.Inject(netip.AddrPortFrom(r.a.addr, 7), group4, spoilt(l.Num()), 0)         // a member by its own number
	r.settle()
	if n := l.got(t, sender, r.a.addr, group4, nil); n != 0 {
		t.Errorf("received %d", n)
	}
	got := r.b.counted()
	delete(got, "rcvd_pkts")
	if d := cmp.Diff(counts{"drop_multicast": 2, "drop_short": 1, "drop_icrc": 1}, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	sender.toGroup(r, group4, ib.QPNMulticast, []byte("x"))
	if n := l.got(t, sender, r.a.addr, group4, []byte("x")); n != 1 {
		t.Errorf("received %d", n)
	}
}

// spoilt is a datagram to a queue pair number whose ICRC is wrong.
func spoilt(n ib.QPN) []byte {
	b := make([]byte, roce.OpUDSendOnly.Info().HdrLen+4+roce.ICRCLen)
	roce.BTH(b).Put(roce.OpUDSendOnly, false, 0, uint16(ib.PKeyDefault), uint32(n), false, 1)
	return b
}

// TestCase27_MembersFailAlone: what one member has against a datagram is its own
// affair, and counted.
func TestCase27_MembersFailAlone(t *testing.T) {
	r := newMcastRig(t, 2)
	sender := r.a.listener(0, false)
	first := r.b.listener(1, false).join(group4)
	dry := r.b.listener(0, false).join(group4) // no receive
	foreign := r.b.listener(1, false).join(group4)
	if err := foreign.Modify(&ib.QPAttr{QKey: 5}, ib.QPAttrQKey); err != nil {
		t.Fatal(err)
	}
	asleep := r.b.listener(1, false).join(group4)
	if err := asleep.Modify(&ib.QPAttr{QPState: ib.QPStateReset}, ib.QPAttrState); err != nil {
		t.Fatal(err)
	}
	short := r.b.listener(0, false).join(group4)
	short.recv(0, roce.GRHLen+1)
	broken := r.b.listener(0, false).join(group4)
	if err := broken.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{{Addr: 1, Length: 100, LKey: 0x123}}}); err != nil {
		t.Fatal(err)
	}
	last := r.b.listener(1, false).join(group4)
	sender.toGroup(r, group4, ib.QPNMulticast, []byte("hello"))
	for _, l := range []*listener{first, last} {
		if n := l.got(t, sender, r.a.addr, group4, []byte("hello")); n != 1 {
			t.Errorf("%#x received %d", l.Num(), n)
		}
	}
	if wcs := r.wcs(broken.cq, 1); wcs[0].Status != ib.WCLocProtErr || broken.State() != ib.QPStateErr {
		t.Errorf("%+v, state %v", wcs[0], broken.State())
	}
	for _, l := range []*listener{dry, foreign, asleep, short} {
		if n := l.got(t, sender, r.a.addr, group4, nil); n != 0 {
			t.Errorf("%#x received %d", l.Num(), n)
		}
	}
	got := r.b.counted()
	for _, c := range append(traffic, "rdma_recvs", "resp_cqe_error") {
		delete(got, c)
	}
	if d := cmp.Diff(counts{"drop_no_recv": 1, "drop_qkey": 1, "drop_state": 1, "drop_length": 1}, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// A queue pair that does not want its own datagrams gets those of a queue pair of
// another host that happens to have the same number.
func TestMulticastSameNumberElsewhere(t *testing.T) {
	r := newMcastRig(t, 1)
	l := r.a.listener(2, true).join(group4)
	datagram := func(from netip.Addr) {
		b := make([]byte, roce.OpUDSendOnlyImm.Info().HdrLen+roce.ICRCLen)
		roce.BTH(b).Put(roce.OpUDSendOnlyImm, false, 0, uint16(ib.PKeyDefault), uint32(ib.QPNMulticast), false, 1)
		roce.DETH(b[roce.BTHLen:]).Put(qkey, uint32(l.Num()))
		p := roce.NewPath(from, group4, 0xC001)
		roce.PutICRC(b[len(b)-roce.ICRCLen:], p.Compute(b, 9))
		r.net.Inject(netip.AddrPortFrom(from, 0xC001), group4, b, 9)
		r.settle()
	}
	datagram(netip.MustParseAddr("192.0.2.77"))
	datagram(r.a.addr)
	if c := r.a.counted(); c["rdma_recvs"] != 1 || c["drop_own_multicast"] != 1 {
		t.Errorf("counted %v", c)
	}
}

// What attach and detach refuse, and what they do twice.
func TestMulticastAttachDetach(t *testing.T) {
	r := newMcastRig(t, 1)
	gid := ib.GIDFromAddr(group4)
	sender, l := r.a.listener(0, false), r.b.listener(4, false)
	for _, typ := range []ib.QPType{ib.RC, ib.UC} {
		q := r.b.qp(r.b.attr(typ))
		refused(t, q.AttachMcast(gid, 0), syscall.EINVAL, "qp")
		refused(t, q.DetachMcast(gid, 0), syscall.EINVAL, "qp")
	}
	for _, g := range []ib.GID{{}, ib.GIDFromAddr(r.b.addr), ib.GIDFromAddr(netip.MustParseAddr("2001:db8::1"))} {
		refused(t, l.AttachMcast(g, 0), syscall.EINVAL, "gid")
		refused(t, l.DetachMcast(g, 0), syscall.EINVAL, "gid")
	}
	refused(t, l.DetachMcast(gid, 0), syscall.EINVAL, "gid")
	// Twice is once, whatever the LID says: RoCE has none.
	for lid := range uint16(2) {
		if err := l.AttachMcast(gid, 0xC000+lid); err != nil {
			t.Fatal(err)
		}
	}
	sender.toGroup(r, group4, ib.QPNMulticast, []byte("1"))
	if n := l.got(t, sender, r.a.addr, group4, []byte("1")); n != 1 {
		t.Errorf("attached twice, received %d", n)
	}
	// As in Linux an attached queue pair cannot be destroyed, and goes on working.
	if err := l.Destroy(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("destroying an attached queue pair: %v, want EBUSY", err)
	}
	sender.toGroup(r, group4, ib.QPNMulticast, []byte("2"))
	if n := l.got(t, sender, r.a.addr, group4, []byte("2")); n != 1 {
		t.Errorf("received %d", n)
	}
	if err := l.DetachMcast(gid, 0); err != nil {
		t.Fatal(err)
	}
	refused(t, l.DetachMcast(gid, 0), syscall.EINVAL, "gid")
	sender.toGroup(r, group4, ib.QPNMulticast, []byte("3"))
	if n := l.got(t, sender, r.a.addr, group4, nil); n != 0 {
		t.Errorf("detached, received %d", n)
	}
	if c := r.b.counted(); c["drop_multicast"] != 0 {
		t.Error("the group was not left: its datagrams still come")
	}
	// In any state.
	early := r.b.qp(r.b.attr(ib.UD))
	for range 2 {
		if err := errors.Join(early.AttachMcast(gid, 0), early.DetachMcast(gid, 0)); err != nil {
			t.Error(err)
		}
	}
	if err := early.Destroy(); err != nil {
		t.Error(err)
	}
	refused(t, early.AttachMcast(gid, 0), syscall.EINVAL, "")
	refused(t, early.DetachMcast(gid, 0), syscall.EINVAL, "")
}

// refused checks errno and parameter of a refusal.
func refused(t *testing.T, err error, want syscall.Errno, param string) {
	t.Helper()
	var op *verbs.OpError
	if !errors.As(err, &op) || !errors.Is(err, want) || op.Param != param {
		t.Errorf("%v, want %v for parameter %q", err, want, param)
	}
}

// A device without an address of the family cannot be in such a group, one takes
// no more groups than it says, and no connection goes to a group.
func TestMulticastLimits(t *testing.T) {
	r := newMcastRig(t, 1)
	only4 := r.node("c", 1500, "192.0.2.3")
	refused(t, only4.listener(0, false).AttachMcast(ib.GIDFromAddr(group6), 0), syscall.EADDRNOTAVAIL, "gid")

	attr, err := r.a.ctx.QueryDevice()
	if err != nil {
		t.Fatal(err)
	}
	if attr.MaxMcastGrp < 1 || attr.MaxMcastQPAttach < 1 || attr.MaxTotalMcastQPAttach < attr.MaxMcastQPAttach {
		t.Errorf("limits %d, %d, %d", attr.MaxMcastGrp, attr.MaxMcastQPAttach, attr.MaxTotalMcastQPAttach)
	}
	q := r.a.qp(r.a.attr(ib.UD))
	gids := make([]ib.GID, attr.MaxMcastGrp)
	a := netip.MustParseAddr("239.0.0.0")
	for i := range gids {
		gids[i] = ib.GIDFromAddr(a)
		a = a.Next()
		if err := q.AttachMcast(gids[i], 0); err != nil {
			t.Fatalf("group %d: %v", i, err)
		}
	}
	if err := q.AttachMcast(ib.GIDFromAddr(a), 0); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("one group too many: %v, want ENOMEM", err)
	}
	for _, g := range gids {
		if err := q.DetachMcast(g, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.AttachMcast(gids[7], 0); err != nil {
		t.Errorf("there is room again: %v", err)
	}
	if err := q.DetachMcast(gids[7], 0); err != nil {
		t.Error(err)
	}
	for _, typ := range []ib.QPType{ib.RC, ib.UC} {
		q := r.a.qp(r.a.attr(typ))
		r.a.to(q, ib.QPStateInit, nil, r.b.addr)
		mask := ib.QPAttrState | ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN
		if typ == ib.RC {
			mask |= ib.QPAttrMaxDestRDAtomic | ib.QPAttrMinRNRTimer
		}
		err := q.Modify(&ib.QPAttr{
			QPState: ib.QPStateRTR, PathMTU: ib.MTU1024, DestQPN: 5,
			AHAttr: ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(group4), PortNum: 1},
		}, mask)
		refused(t, err, syscall.EINVAL, "AHAttr.DGID")
	}
}
