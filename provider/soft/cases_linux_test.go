package soft

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Each queue pair sends from one UDP port, and together they use many.
func TestCase21_SourcePorts(t *testing.T) {
	// Every request is sent once and seven times again, at least.
	const qps, each = 64, 8
	h := newHost(t, setup{shards: 2})
	raw, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(loopAddr(), roce.Port)))
	must(t, err)
	defer raw.Close()
	must(t, raw.SetReadBuffer(4<<20))
	peer, _ := netip.AddrFromSlice(raw.LocalAddr().(*net.UDPAddr).IP)
	for i := range qps {
		a := h.qp(ib.RC, 0)
		a.up(&end{QP: numbered(0x1000 + i), h: &host{addrs: []netip.Addr{peer.Unmap()}}}, ib.MTU1024)
		for range each {
			a.send(driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: h.sge(0, 8)})
		}
	}
	ports, packets := make(map[uint32]uint16), make(map[uint32]int)
	must(t, raw.SetReadDeadline(time.Now().Add(patience)))
	buf := make([]byte, 64<<10)
	for full := 0; full < qps; {
		n, from, err := raw.ReadFromUDPAddrPort(buf)
		if err != nil {
			t.Fatalf("%v with %d queue pairs seen: %v", err, full, packets)
		}
		if n < roce.BTHLen {
			t.Fatalf("%d bytes from %v", n, from)
		}
		q := roce.BTH(buf).DestQP()
		if was := ports[q]; was != 0 && was != from.Port() {
			t.Fatalf("queue pair %#x sends from %d and %d", q, was, from.Port())
		}
		ports[q] = from.Port()
		if packets[q]++; packets[q] == each {
			full++
		}
	}
	distinct := make(map[uint16]bool)
	for _, p := range ports {
		distinct[p] = true
		if p < 0xC000 {
			t.Fatalf("source port %d is not one of RoCEv2's", p)
		}
	}
	if len(ports) != qps || len(distinct) < 16 {
		t.Fatalf("%d queue pairs use %d source ports", len(ports), len(distinct))
	}
}

// numbered is a queue pair of which only the number is known.
type numbered ib.QPN

func (n numbered) Num() ib.QPN                          { return ib.QPN(n) }
func (numbered) Modify(*ib.QPAttr, ib.QPAttrMask) error { return syscall.EINVAL }
func (numbered) Query() (ib.QPAttr, error)              { return ib.QPAttr{}, syscall.EINVAL }
func (numbered) PostSend([]driver.SendWR) (int, error)  { return 0, syscall.EINVAL }
func (numbered) PostRecv([]driver.RecvWR) (int, error)  { return 0, syscall.EINVAL }
func (numbered) Destroy() error                         { return nil }

// A path MTU beyond the link's is refused with the reason, and changes nothing.
func TestCase24_PathMTUBeyondLink(t *testing.T) {
	h := newHost(t, setup{link: 1500})
	a, b := h.qp(ib.RC, 0), h.qp(ib.RC, 0)
	must(t, a.init())
	err := a.rtr(b, ib.MTU4096)
	if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "1500") {
		t.Fatalf("path MTU 4096 on a link of 1500: %v", err)
	}
	at, err := a.Query()
	if must(t, err); at.QPState != ib.QPStateInit || at.DestQPN != 0 {
		t.Fatalf("after the refusal: %+v", at)
	}
	must(t, a.rtr(b, ib.MTU1024))
}

// Misaligned atomics and those without the queue pair's right are invalid
// requests, those without the region's right access errors.
func TestCase48_AtomicStatus(t *testing.T) {
	for _, c := range []struct {
		what   string
		off    uint64
		qp, mr bool
		want   ib.WCStatus
	}{
		{"good", 8, true, true, ib.WCSuccess},
		{"misaligned", 4, true, true, ib.WCRemInvReqErr},
		{"no right of the queue pair", 8, false, true, ib.WCRemInvReqErr},
		{"no right of the region", 8, true, false, ib.WCRemAccessErr},
	} {
		t.Run(c.what, func(t *testing.T) {
			ha, hb := newHost(t, setup{}), newHost(t, setup{})
			a, b := ha.qp(ib.RC, 0), hb.qp(ib.RC, 0)
			join(a, b, ib.MTU1024)
			if !c.qp {
				must(t, b.Modify(&ib.QPAttr{QPAccessFlags: ib.AccessRemoteWrite}, ib.QPAttrAccessFlags))
			}
			mr := hb.mr
			if !c.mr {
				var err error
				mr, err = hb.pd.RegMR(hb.buf, 0, false, ib.AccessLocalWrite|ib.AccessRemoteRead|ib.AccessRemoteWrite)
				must(t, err)
				hb.later(mr.Dereg)
			}
			before := bytes.Clone(hb.buf)
			hb.dev.eng.Quiesce()
			a.send(driver.SendWR{
				Opcode: ib.WRAtomicFetchAndAdd, SGList: ha.sge(0, 8), RemoteAddr: mr.Addr() + c.off, RKey: mr.RKey(), CompareAdd: 3,
			})
			ha.wc(c.want)
			hb.dev.eng.Quiesce()
			if c.want != ib.WCSuccess && !bytes.Equal(before, hb.buf) {
				t.Fatal("the memory changed")
			}
		})
	}
}

// Inline data is gathered from all elements, at the time of the post.
func TestCase53_InlineGather(t *testing.T) {
	ha, hb := newHost(t, setup{}), newHost(t, setup{})
	a, b := ha.qp(ib.RC, 0), hb.qp(ib.RC, 0)
	join(a, b, ib.MTU1024)
	copy(ha.buf, "one")
	copy(ha.buf[100:], "twotwo")
	copy(ha.buf[200:], "three")
	b.recv(0, 0, 64)
	list := append(append(ha.sge(0, 3), ha.sge(100, 6)...), ha.sge(200, 5)...)
	a.send(driver.SendWR{Opcode: ib.WRSend, Flags: ib.SendInline, SGList: list})
	clear(ha.buf[:256])
	if wc := hb.ok(); wc.ByteLen != 14 || string(hb.buf[:14]) != "onetwotwothree" {
		t.Fatalf("%d bytes: %q", wc.ByteLen, hb.buf[:14])
	}
	ha.ok()
}

// The limit of inline data is told, at least what was asked for, or EINVAL.
func TestCase54_InlineLimit(t *testing.T) {
	h := newHost(t, setup{})
	for _, c := range []struct {
		ask uint32
		ok  bool
	}{{0, true}, {220, true}, {512, true}, {1024, true}, {65536, false}} {
		at := h.attr(ib.RC)
		at.Cap.MaxInlineData = c.ask
		q, err := h.dev.CreateQP(h.pd, at, nil)
		if (err == nil) != c.ok || err != nil && (!errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "MaxInlineData")) {
			t.Fatalf("%d bytes inline: %v", c.ask, err)
		}
		if err != nil {
			continue
		}
		if at.Cap.MaxInlineData < c.ask {
			t.Fatalf("asked for %d, told %d", c.ask, at.Cap.MaxInlineData)
		}
		must(t, q.Destroy())
	}
}

// ENOMEM is a full queue and nothing else; it recovers by polling.
func TestCase55_FullQueue(t *testing.T) {
	ha, hb := newHost(t, setup{}), newHost(t, setup{})
	at := ha.attr(ib.RC)
	at.Cap.MaxSendWR = 16
	a, b := ha.qpWith(at, 0), hb.qp(ib.RC, 0)
	a.up(b, ib.MTU1024) // b is not there yet: nothing completes
	wr := driver.SendWR{Opcode: ib.WRRDMAWrite, RemoteAddr: hb.mr.Addr(), RKey: hb.mr.RKey()}
	for i := range at.Cap.MaxSendWR {
		w := wr
		if i%4 == 3 {
			w.Flags = ib.SendSignaled
		}
		_, err := a.PostSend([]driver.SendWR{w})
		must(t, err)
	}
	n, err := a.PostSend([]driver.SendWR{wr})
	if n != 0 || !errors.Is(err, syscall.ENOMEM) {
		t.Fatalf("post to a full queue: %d, %v", n, err)
	}
	b.up(a, ib.MTU1024)
	for range at.Cap.MaxSendWR / 4 {
		ha.ok()
	}
	for _, bad := range []driver.SendWR{
		{Opcode: ib.WRSend, SGList: make([]driver.SGE, 5)},
		{Opcode: ib.WRSend, Flags: ib.SendInline, InlineData: make([]byte, at.Cap.MaxInlineData+1)},
		{Opcode: ib.WRSend, SGList: []driver.SGE{{Length: 1 << 31}, {Length: 1}}}, // case 56
		{Opcode: 99},
	} {
		if n, err := a.PostSend([]driver.SendWR{bad}); n != 0 || !errors.Is(err, syscall.EINVAL) {
			t.Fatalf("post of %+v: %d, %v", bad, n, err)
		}
	}
	a.send(wr)
	ha.ok()
}

// What a query promises a post takes: 2^31 bytes, of memory that has no pages.
func TestCase56_LongestMessage(t *testing.T) {
	h := newHost(t, setup{})
	at, err := h.dev.QueryPort(1)
	if must(t, err); at.MaxMsgSz != ib.MaxMsgSize {
		t.Fatalf("max_msg_sz %d", at.MaxMsgSz)
	}
	m, err := unix.Mmap(-1, 0, 1<<31+4096, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Skip(err)
	}
	defer func() { must(t, unix.Munmap(m)) }()
	mr, err := h.pd.RegMR(m, 0, false, ib.AccessRemoteRead)
	must(t, err)
	defer func() { must(t, mr.Dereg()) }()
	a, b := h.qp(ib.RC, 0), h.qp(ib.RC, 0)
	a.up(b, ib.MTU4096) // b answers nothing
	for _, c := range []struct {
		n  uint32
		ok bool
	}{{1 << 30, true}, {1<<30 + 4, true}, {1<<31 - 1, true}, {1 << 31, true}, {1<<31 + 1, false}} {
		_, err := a.PostSend([]driver.SendWR{{
			Opcode: ib.WRRDMAWrite, SGList: []driver.SGE{{Addr: mr.Addr(), Length: c.n, LKey: mr.LKey()}},
		}})
		if (err == nil) != c.ok || err != nil && !errors.Is(err, syscall.EINVAL) {
			t.Fatalf("%d bytes: %v", c.n, err)
		}
	}
	must(t, a.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState))
	for range 4 {
		h.wc(ib.WCWRFlushErr)
	}
}

// Absurd sizes are refused by name, cost nothing, and leave nothing behind.
func TestCase62_AbsurdSizes(t *testing.T) {
	h := newHost(t, setup{})
	const most = 1<<32 - 1
	for name, set := range map[string]func(*ib.QPCap){
		"MaxSendWR":     func(c *ib.QPCap) { c.MaxSendWR = most },
		"MaxRecvWR":     func(c *ib.QPCap) { c.MaxRecvWR = most },
		"MaxSendSGE":    func(c *ib.QPCap) { c.MaxSendSGE = most },
		"MaxRecvSGE":    func(c *ib.QPCap) { c.MaxRecvSGE = most },
		"MaxInlineData": func(c *ib.QPCap) { c.MaxInlineData = most },
	} {
		at := h.attr(ib.RC)
		set(&at.Cap)
		_, err := h.dev.CreateQP(h.pd, at, nil)
		if !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, at := range []ib.SRQAttr{{MaxWR: most}, {MaxWR: 1, MaxSGE: most}, {}} {
		if _, err := h.dev.CreateSRQ(h.pd, &at, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("srq %+v: %v", at, err)
		}
	}
	srq, err := h.dev.CreateSRQ(h.pd, &ib.SRQAttr{MaxWR: 4, MaxSGE: 1}, nil)
	must(t, err)
	defer func() { must(t, srq.Destroy()) }()
	for _, c := range []struct {
		at   ib.SRQAttr
		mask ib.SRQAttrMask
	}{{ib.SRQAttr{MaxWR: most}, ib.SRQMaxWR}, {ib.SRQAttr{}, ib.SRQMaxWR}, {ib.SRQAttr{SRQLimit: most}, ib.SRQLimit}, {ib.SRQAttr{}, 1 << 7}} {
		if err := srq.Modify(&c.at, c.mask); !errors.Is(err, syscall.EINVAL) || srq.Query().MaxWR < 4 {
			t.Errorf("srq %+v: %v", c.at, err)
		}
	}
	for _, n := range []int{most, -1, 0, 1 << 40} {
		if _, err := h.dev.CreateCQ(n, nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("cqe %d: %v", n, err)
		}
		if err := h.cq.Resize(n); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("resize to %d: %v", n, err)
		}
	}
	if _, err := h.pd.RegMRPointer(1<<20, 1<<63, 1<<63+1, true, 0); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("region that wraps: %v", err)
	}
}

// A queue that is too small is in error: the event comes once, what it holds is
// given, then EOVERFLOW; nothing hangs (cases 69 and 70).
func TestCase69_Overrun(t *testing.T) {
	for _, c := range []struct{ cqe, qps, each int }{{3, 1, 4}, {64, 16, 32}} {
		ha, hb := newHost(t, setup{}), newHost(t, setup{})
		cq, err := ha.dev.CreateCQ(c.cqe, nil)
		must(t, err)
		ha.later(cq.Destroy)
		var errs atomic.Int32
		cq.Events(func(e ib.EventType) {
			if e == ib.EventCQErr {
				errs.Add(1)
			}
		})
		for range c.qps {
			at := ha.attr(ib.RC)
			at.SendCQ = cq
			a, b := ha.qpWith(at, 0), hb.qp(ib.RC, 0)
			join(a, b, ib.MTU1024)
			for range c.each {
				a.send(driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: ha.sge(0, 8), RemoteAddr: hb.mr.Addr(), RKey: hb.mr.RKey()})
			}
		}
		for errs.Load() == 0 {
			ha.dev.Progress()
		}
		if err := cq.Resize(c.cqe - 1); !errors.Is(err, syscall.EINVAL) {
			t.Fatalf("resize below what it holds: %v", err)
		}
		wcs, got := make([]driver.WC, 5), 0
		for {
			n, err := cq.Poll(wcs)
			got += n
			if err != nil {
				if !errors.Is(err, syscall.EOVERFLOW) {
					t.Fatal(err)
				}
				break
			}
			if n == 0 {
				t.Fatal("an overrun queue is empty without an error")
			}
		}
		if got != c.cqe || errs.Load() != 1 || ha.dev.Stats().CQOverruns != 1 {
			t.Fatalf("%d of %d given, %d events, %d counted", got, c.cqe, errs.Load(), ha.dev.Stats().CQOverruns)
		}
	}
}

// A notification may poll, arm and post; calls come one at a time.
func TestCase71_NotifyPollsAndPosts(t *testing.T) {
	const rounds = 500
	var ha *host
	var a *end
	var running, overlaps, got atomic.Int32
	done := make(chan struct{})
	write := func() {
		a.send(driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: ha.sge(0, 8), RemoteAddr: ha.mr.Addr() + 64, RKey: ha.mr.RKey()})
	}
	ha = newHost(t, setup{notify: func() {
		if running.Add(1) != 1 {
			overlaps.Add(1)
		}
		defer running.Add(-1)
		wcs := make([]driver.WC, 2)
		for again := true; again; again = ha.cq.Arm(false) {
			for {
				n, err := ha.cq.Poll(wcs)
				if err != nil {
					t.Error(err)
				}
				if n == 0 {
					break
				}
				for range n {
					switch k := got.Add(1); {
					case k < rounds:
						write()
					case k == rounds+3:
						close(done)
					}
				}
			}
		}
	}})
	a = ha.qp(ib.RC, 0)
	join(a, a, ib.MTU1024)
	ha.cq.Arm(false)
	for range 4 {
		write()
	}
	<-done
	if n := overlaps.Load(); n != 0 {
		t.Fatalf("%d calls while another ran", n)
	}
}

// A notification and an event may change and destroy the queue pair that they
// are about, whoever's call they come from.
func TestCase71_NotifyDestroys(t *testing.T) {
	var h *host
	var q driver.QP
	told := 0
	h = newHost(t, setup{notify: func() {
		if told++; told == 1 {
			_, err := q.Query()
			if err := errors.Join(err, q.Modify(&ib.QPAttr{QPState: ib.QPStateReset}, ib.QPAttrState), q.Destroy()); err != nil {
				t.Error(err)
			}
		}
	}})
	e := h.qp(ib.RC, 0)
	q = e.QP
	must(t, e.init())
	for range 3 {
		e.recv(0, 0, 8)
	}
	h.cq.Arm(false)
	must(t, e.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState))
	if told != 1 {
		t.Fatalf("told %d times", told)
	}
	if _, err := e.PostRecv([]driver.RecvWR{{}}); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("receive posted to a destroyed queue pair: %v", err)
	}
	if err := e.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("modify of a destroyed queue pair: %v", err)
	}
}

// The datagram limit is the port's MTU.
func TestCase75_DatagramLimit(t *testing.T) {
	ha, hb := newHost(t, setup{}), newHost(t, setup{})
	a, b := ha.qp(ib.UD, 0), hb.qp(ib.UD, 0)
	join(a, b, 0)
	at := a.ah(b)
	ah, err := ha.dev.CreateAH(ha.pd, &at)
	must(t, err)
	ha.later(ah.Destroy)
	b.recv(1, 0, 4096+40)
	wr := driver.SendWR{Opcode: ib.WRSend, SGList: ha.sge(0, 4096), AH: ah, RemoteQPN: b.Num(), RemoteQKey: testQKey}
	a.send(wr)
	ha.ok()
	if wc := hb.ok(); wc.ByteLen != 4096+40 {
		t.Fatalf("%+v", wc)
	}
	wr.SGList = ha.sge(0, 4097)
	a.send(wr)
	ha.wc(ib.WCLocLenErr)
}

// Every index of the GID table is an address that is there, or an error.
func TestCase76_GIDTable(t *testing.T) {
	h := newHost(t, setup{addrs: []netip.Addr{loopAddr(), netip.IPv6Loopback()}})
	for i := range gidTableLen + 1 {
		e, err := h.dev.GIDEntry(1, i)
		switch {
		case i < 2:
			if must(t, err); e.GID.Addr() != h.addrs[i] {
				t.Fatalf("GID %d is %v", i, e.GID)
			}
		case i < gidTableLen && !errors.Is(err, ib.ErrNoData), i == gidTableLen && !errors.Is(err, syscall.EINVAL):
			t.Fatalf("GID %d: %v, %v", i, e, err)
		}
	}
	if _, err := h.dev.GIDEntry(1, -1); !errors.Is(err, syscall.EINVAL) {
		t.Fatal(err)
	}
}

// Device names give GUIDs that are not zero, are stable, and differ.
func TestCase79_GUIDs(t *testing.T) {
	seen := make(map[uint64]string)
	for _, name := range []string{"soft_a", "soft_b", ""} {
		g := guidFromName(name)
		if g == 0 || g != guidFromName(name) || seen[g] != "" {
			t.Fatalf("GUID of %q is %x", name, g)
		}
		seen[g] = name
	}
	at := newHost(t, setup{}).dev.Query()
	if at.NodeGUID == 0 || at.SysImageGUID == 0 {
		t.Fatalf("%+v", at)
	}
}

// Destroy returns though a packet is on its way and never acknowledged; what
// comes late is counted and ignored.
func TestCase121_LatePackets(t *testing.T) {
	ha, hb := newHost(t, setup{}), newHost(t, setup{})
	a, b := ha.qp(ib.RC, 0), hb.qp(ib.RC, 0)
	join(a, b, ib.MTU1024)
	must(t, b.Destroy())
	for range 100 {
		a.send(driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: ha.sge(0, 4096), RemoteAddr: hb.mr.Addr(), RKey: hb.mr.RKey()})
	}
	must(t, a.Destroy())
	for hb.dev.Stats().DropNoQP == 0 {
		hb.dev.Progress()
	}
	if err := ha.dev.eng.Busy(); err != nil {
		t.Fatal(err)
	}
	var wc [1]driver.WC
	if n, err := ha.cq.Poll(wc[:]); n != 0 || err != nil {
		t.Fatalf("a destroyed queue pair completed %+v, %v", wc, err)
	}
}

// Somebody else has the address: the transition that needs it fails and says
// who, and the queue pair works with another GID.
func TestAddressInUse(t *testing.T) {
	taken := loopAddr()
	first := newHost(t, setup{addrs: []netip.Addr{taken}})
	_, err := first.dev.localIndex(taken)
	must(t, err)
	h := newHost(t, setup{addrs: []netip.Addr{taken, loopAddr()}})
	check := func(err error) {
		t.Helper()
		if !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), taken.String()) {
			t.Fatalf("an address in use: %v", err)
		}
	}
	a, b := h.qp(ib.RC, 0), h.qp(ib.RC, 1)
	must(t, a.init())
	err = a.rtr(b, ib.MTU1024)
	check(err)
	t.Log(err)
	at := a.ah(b)
	_, err = h.dev.CreateAH(h.pd, &at)
	check(err)
	st, err := a.Query()
	if must(t, err); st.QPState != ib.QPStateInit {
		t.Fatalf("state %v", st.QPState)
	}
	a.gid = 1
	must(t, a.rtr(b, ib.MTU1024))
	must(t, a.rts())
	b.up(a, ib.MTU1024)
	exercise(t, a, b, 1000)
}

// GID indices beyond the table, families that differ, and the like are refused
// and leave no socket and no handle.
func TestBadAddresses(t *testing.T) {
	h := newHost(t, setup{})
	good := h.qp(ib.RC, 0).ah(&end{h: h})
	for what, set := range map[string]func(*ib.AHAttr){
		"sgid_index": func(a *ib.AHAttr) { a.SGIDIndex = 255 },
		"family":     func(a *ib.AHAttr) { a.DGID = ib.GIDFromAddr(netip.IPv6Loopback()) },
		"no grh":     func(a *ib.AHAttr) { a.IsGlobal = false },
		"no dgid":    func(a *ib.AHAttr) { a.DGID = ib.GID{} },
		"port":       func(a *ib.AHAttr) { a.PortNum = 2 },
		"no port":    func(a *ib.AHAttr) { a.PortNum = 0 },
		"flow label": func(a *ib.AHAttr) { a.FlowLabel = 1 << 20 },
	} {
		at := good
		set(&at)
		if _, err := h.dev.CreateAH(h.pd, &at); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
