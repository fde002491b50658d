package soft

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/port/udp"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// exercise moves data both ways by everything that the service offers. The
// halves of each host's memory are for what it sends and what it receives.
func exercise(t testing.TB, a, b *end, n int) {
	t.Helper()
	half := len(a.h.buf) / 2
	if n > half {
		t.Fatal("too long")
	}
	src, dst := a.h.buf[:n], b.h.buf[half:half+n]
	sync := func() { // the race detector does not see the order that packets make
		a.h.dev.eng.Quiesce()
		b.h.dev.eng.Quiesce()
	}
	sync()
	defer sync()
	randomize(src, uint64(n))
	check := func(what string) {
		t.Helper()
		sync()
		defer sync()
		if !bytes.Equal(src, dst) {
			t.Fatalf("%s of %d bytes: data differs", what, n)
		}
		clear(dst)
	}
	raddr, rkey := b.h.mr.Addr()+uint64(half), b.h.mr.RKey()
	if a.typ != ib.UD {
		// The SEND behind tells, on UC too, that the WRITE has arrived.
		b.recv(1, half, 0)
		a.send(driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: a.h.sge(0, n), RemoteAddr: raddr, RKey: rkey})
		a.send(driver.SendWR{Opcode: ib.WRSend})
		both(t, a, b, 2, 1)
		check("write")
		b.recv(2, half, 0)
		a.send(driver.SendWR{
			Opcode: ib.WRRDMAWriteWithImm, SGList: a.h.sge(0, n), RemoteAddr: raddr, RKey: rkey, ImmData: 0xABCDEF01,
		})
		for _, wc := range both(t, a, b, 1, 1) {
			if wc.Opcode == ib.WCRecvRDMAWithImm && (wc.ImmData != 0xABCDEF01 || int(wc.ByteLen) != n) {
				t.Fatalf("immediate %+v", wc)
			}
		}
		check("write with immediate")
	}
	if a.typ == ib.RC {
		b.send(driver.SendWR{
			Opcode: ib.WRRDMARead, SGList: b.h.sge(half, n), RemoteAddr: a.h.mr.Addr(), RKey: a.h.mr.RKey(),
		})
		b.h.ok()
		check("read")
	}
	if a.typ == ib.UD {
		return
	}
	b.recv(3, half, n)
	a.send(driver.SendWR{Opcode: ib.WRSendWithImm, SGList: a.h.sge(0, n), ImmData: 7})
	for _, wc := range both(t, a, b, 1, 1) {
		if wc.Opcode == ib.WCRecv && (wc.ImmData != 7 || int(wc.ByteLen) != n || wc.Flags&ib.WCWithImm == 0) {
			t.Fatalf("receive %+v", wc)
		}
	}
	check("send")
}

// both waits for na completions of a and nb of b, which may be one queue's.
func both(t testing.TB, a, b *end, na, nb int) (wcs []driver.WC) {
	t.Helper()
	for range na {
		wcs = append(wcs, a.h.ok())
	}
	for range nb {
		wcs = append(wcs, b.h.ok())
	}
	return wcs
}

// datagrams sends some between two UD queue pairs and compares every byte, those
// of the GRH area too.
func datagrams(t testing.TB, a, b *end) {
	t.Helper()
	attr := a.ah(b)
	ah, err := a.h.dev.CreateAH(a.h.pd, &attr)
	must(t, err)
	defer func() { must(t, ah.Destroy()) }()
	half := len(a.h.buf) / 2
	mtu := 1024
	for _, n := range []int{0, 1, 3, 64, mtu} {
		randomize(a.h.buf[:n], uint64(n))
		b.h.dev.eng.Quiesce()
		b.recv(9, half, half)
		a.send(driver.SendWR{
			Opcode: ib.WRSendWithImm, SGList: a.h.sge(0, n), ImmData: 5, AH: ah, RemoteQPN: b.Num(), RemoteQKey: testQKey,
		})
		for _, wc := range both(t, a, b, 1, 1) {
			if wc.Opcode != ib.WCRecv {
				continue
			}
			if int(wc.ByteLen) != 40+n || wc.Flags&ib.WCGRH == 0 || wc.ImmData != 5 || wc.SrcQP != a.Num() {
				t.Fatalf("receive %+v", wc)
			}
		}
		area := b.h.buf[half : half+40]
		if got := b.h.buf[half+40 : half+40+n]; !bytes.Equal(got, a.h.buf[:n]) {
			t.Fatalf("%d bytes: data differs", n)
		}
		udpLen := roce.BTHLen + roce.DETHLen + 4 + (n+3)&^3 + roce.ICRCLen
		want := make([]byte, 40)
		from, to := a.addr().WithZone(""), b.addr().WithZone("")
		if from.Is4() {
			// Everything but identification and checksum is known.
			roce.PutGRH4(want, from, to, 0x20, 64, 0, udpLen)
			copy(want[24:26], area[24:26])
			copy(want[30:32], area[30:32])
		} else {
			roce.PutGRH6(want, from, to, 0x20, 0, 64, udpLen)
			want[1], area[1] = want[1]&0xF0, area[1]&0xF0 // the flow label is the system's
			want[2], want[3], area[2], area[3] = 0, 0, 0, 0
		}
		if !bytes.Equal(area, want) {
			t.Fatalf("GRH area\n got %x\nwant %x", area, want)
		}
		src, dst, tclass, hop, _, ok := roce.ParseGRH(area)
		if !ok || src != from || dst != to || tclass != 0x20 || hop != 64 {
			t.Fatalf("GRH parsed: %v %v %#x %d %v", src, dst, tclass, hop, ok)
		}
	}
}

var sizes = []int{0, 1, 1023, 1024, 1025, 5000, 64<<10 + 1}

// services runs every service between two hosts.
func services(t testing.TB, ha, hb *host, gidA, gidB int) {
	t.Helper()
	for _, typ := range []ib.QPType{ib.RC, ib.UC, ib.UD} {
		a, b := ha.qp(typ, gidA), hb.qp(typ, gidB)
		join(a, b, ib.MTU1024)
		if typ == ib.UD {
			datagrams(t, a, b)
			datagrams(t, b, a)
			continue
		}
		for _, n := range sizes {
			exercise(t, a, b, n)
			exercise(t, b, a, n)
		}
	}
}

func TestServicesIPv4(t *testing.T) {
	s := setup{size: 512 << 10}
	services(t, newHost(t, s), newHost(t, s), 0, 0)
}

// ::1 is one address: both ends are one device's.
func TestServicesIPv6Loopback(t *testing.T) {
	h := newHost(t, setup{size: 512 << 10, addrs: []netip.Addr{netip.IPv6Loopback()}})
	_, err := h.dev.localIndex(netip.IPv6Loopback())
	must6(t, err)
	services(t, h, h, 0, 0)
}

// Unique local and link-local addresses, over a pair of virtual Ethernet
// interfaces for the latter.
func TestServicesIPv6(t *testing.T) {
	newNetwork(t)
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	must(t, netlink.LinkSetUp(lo))
	addr := func(l netlink.Link, s string) {
		t.Helper()
		a, err := netlink.ParseAddr(s)
		must(t, err)
		a.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(l, a); err != nil {
			t.Skipf("address %s: %v", s, err)
		}
	}
	addr(lo, "fd00:4791::1/128")
	addr(lo, "fd00:4791::2/128")
	s := setup{size: 512 << 10, addrs: []netip.Addr{netip.MustParseAddr("fd00:4791::1")}}
	a := newHost(t, s)
	s.addrs = []netip.Addr{netip.MustParseAddr("fd00:4791::2")}
	services(t, a, newHost(t, s), 0, 0)

	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "va", MTU: 1500}, PeerName: "vb"}
	if err := netlink.LinkAdd(v); err != nil {
		t.Skipf("no veth: %v", err)
	}
	for name, ip := range map[string]string{"va": "fe80::a/64", "vb": "fe80::b/64"} {
		l, err := netlink.LinkByName(name)
		must(t, err)
		must(t, netlink.LinkSetUp(l))
		addr(l, ip)
	}
	// The system takes its time until there is a way from one to the other.
	warm(t, "fe80::a%va", "fe80::b%vb")
	warm(t, "fe80::b%vb", "fe80::a%va")
	// Without zones: they are the interface's.
	x := newHost(t, setup{size: 512 << 10, netdev: "va", link: 1500, addrs: []netip.Addr{netip.MustParseAddr("fe80::a")}})
	y := newHost(t, setup{size: 512 << 10, netdev: "vb", link: 1500, addrs: []netip.Addr{netip.MustParseAddr("fe80::b")}})
	services(t, x, y, 0, 0)
}

// warm sends plain datagrams until one arrives. The zone of the destination is
// that of the source.
func warm(t *testing.T, from, to string) {
	t.Helper()
	src, dst := netip.MustParseAddr(from), netip.MustParseAddr(to)
	open := func(a netip.Addr) *net.UDPConn {
		c, err := net.ListenUDP("udp6", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, 0)))
		must(t, err)
		return c
	}
	x, y := open(src), open(dst)
	defer x.Close()
	defer y.Close()
	at := netip.AddrPortFrom(dst.WithZone(src.Zone()), y.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	for deadline := time.Now().Add(patience); ; {
		_, _ = x.WriteToUDPAddrPort([]byte{1}, at)
		must(t, y.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		if _, _, err := y.ReadFromUDPAddrPort(make([]byte, 8)); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no way from %s to %s", from, to)
		}
	}
}

// A queue pair connected to itself, to another one at the same address, and
// between two addresses of one device (case 97 at this floor).
func TestCase97_LoopbackOfOneDevice(t *testing.T) {
	h := newHost(t, setup{size: 512 << 10, addrs: []netip.Addr{loopAddr(), loopAddr()}, shards: 2})
	for _, gids := range [][2]int{{0, 0}, {0, 1}, {1, 0}, {1, 1}} {
		services(t, h, h, gids[0], gids[1])
	}
	for _, typ := range []ib.QPType{ib.RC, ib.UC} {
		q := h.qp(typ, 0)
		join(q, q, ib.MTU4096)
		for _, n := range sizes {
			exercise(t, q, q, n)
		}
	}
}

// Without the kernel's offloads everything works as well, only slower.
func TestServicesVariants(t *testing.T) {
	for _, c := range []udp.Config{
		{NoGSO: true}, {NoGRO: true}, {NoMMsg: true}, {MaxSegs: 2}, {NoGSO: true, NoGRO: true, NoMMsg: true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			s := setup{size: 512 << 10, udp: c}
			services(t, newHost(t, s), newHost(t, s), 0, 0)
			services(t, newHost(t, s), newHost(t, setup{size: 512 << 10}), 0, 0)
		})
	}
}

// Small receive buffers lose packets; what arrives is right all the same.
func TestSmallReceiveBuffers(t *testing.T) {
	for _, size := range []int{212992, 4096} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			const n = 1 << 20
			s := setup{size: 4 * n, udp: udp.Config{RecvBuf: size}}
			ha, hb := newHost(t, s), newHost(t, s)
			const qps, each = 4, 3
			var as, bs []*end
			for range qps {
				a, b := ha.qp(ib.RC, 0), hb.qp(ib.RC, 0)
				join(a, b, ib.MTU4096)
				as, bs = append(as, a), append(bs, b)
			}
			ha.fill(3)
			ha.dev.eng.Quiesce()
			hb.dev.eng.Quiesce()
			piece := 2 * n / qps / each
			for i, a := range as {
				for k := range each {
					off := (i*each + k) * piece
					a.send(driver.SendWR{
						Opcode: ib.WRRDMAWrite, SGList: ha.sge(off, piece), RemoteAddr: hb.mr.Addr() + uint64(off), RKey: hb.mr.RKey(),
					})
				}
			}
			for range qps * each {
				ha.ok()
			}
			hb.dev.eng.Quiesce() // what the engine wrote is seen
			all := piece * qps * each
			if sum(ha.buf[:all]) != sum(hb.buf[:all]) {
				t.Fatal("written data differs")
			}
			for i, b := range bs {
				off := i * each * piece
				b.send(driver.SendWR{
					Opcode: ib.WRRDMARead, SGList: hb.sge(2*n+off, each*piece), RemoteAddr: ha.mr.Addr() + uint64(off), RKey: ha.mr.RKey(),
				})
			}
			for range qps {
				hb.ok()
			}
			if sum(ha.buf[:all]) != sum(hb.buf[2*n:2*n+all]) {
				t.Fatal("read data differs")
			}
			st := ha.dev.Stats()
			t.Logf("sent again %d, timeouts %d", st.Retransmits, st.LocalTimeouts)
		})
	}
}
