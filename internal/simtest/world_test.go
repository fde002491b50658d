package simtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// device is what the simulation drives: only newDevice knows which.
type device interface {
	driver.Device
	Turn(now int64) int64
	Busy() error
	Leaks() error
	Stats() transport.Stats
}

func newDevice(cfg soft.Config) (device, error) { return soft.NewDevice(cfg) }

// sim is one run.
type sim struct {
	seed   uint64
	rng    *rand.Rand
	net    *simnet.Net
	prof   profile
	nodes  []*node
	conns  []*conn
	dgrams []*qp // UD
	groups []*group
	qkey   ib.QKey // of everybody, if there are groups
	qps    map[qpKey]*qp
	ops    []*op        // by WR id
	recvs  []*recv      // by WR id
	byID   []*op        // by content id: the message that carries it
	wcs    []completion // of the poll at hand
	netBad bool         // the network may have caused RETRY_EXC
	dups   bool         // the network may duplicate
	late   bool         // the network may reorder

	lossless bool // it loses nothing
	trace    *trace
	log      func(format string, args ...any) // nil: quiet
	stats    stats
}

type qpKey struct {
	node *node
	num  ib.QPN
}

// stats count what a run met.
type stats struct {
	posted, success, failed, flushed, received, revived, actions         int
	keyUses, keysBorn, keysDied, remoteInvs, xrc, copies, overruns, srqs int
	limits                                                               int
}

// failure is the panic that ends a run.
type failure struct{ msg string }

func (s *sim) failf(format string, args ...any) {
	panic(failure{fmt.Sprintf("at %d ns: ", s.net.Now()) + fmt.Sprintf(format, args...)})
}

func (s *sim) must(what string, err error) {
	if err != nil {
		s.failf("%s: %v", what, err)
	}
}

func (s *sim) note(format string, args ...any) {
	if s.log != nil {
		s.log("%d ns: "+format, append([]any{s.net.Now()}, args...)...)
	}
}

func (s *sim) chance(p float64) bool { return p > 0 && s.rng.Float64() < p }

// between gives a number from lo to hi, both included.
func (s *sim) between(lo, hi int) int { return lo + s.rng.IntN(hi-lo+1) }

func pick[T any](s *sim, of ...T) T { return of[s.rng.IntN(len(of))] }

// node is a device with what belongs to it.
type node struct {
	id      int
	dev     device
	port    *simnet.Port
	addrs   []netip.Addr
	iface   iface
	arena   *arena
	pd, pd2 driver.PD
	full    driver.MR // all rights
	remRO   driver.MR // remote read only
	locRO   driver.MR // no local write, no remote right
	foreign driver.MR // of the other protection domain
	binder  driver.MR // windows are bound to it
	counter *counter

	binderBase uint64
	holders    []*holder
	dead       []*key // some that were good
	victims    map[ib.RKey]bool
	annexes    []*arena
	xrcd       driver.XRCD // nil: no XRC
	xsrqs      []*srq
	risky      []*cq // they may overrun
	cqs        []*cq
	srqs       []*srq
	ahs        map[[2]netip.Addr]driver.AH
}

// counter is 8 bytes to which all queue pairs add 1 by atomics.
type counter struct {
	slot    *slot
	init    uint64
	posted  int
	success int
	seen    map[uint64]bool // values that were there before
}

// srq is a shared receive queue.
type srq struct {
	node   *node
	dq     driver.SRQ
	cap    int
	size   int // bytes of each receive
	posted int
	lost   int // at most so many of them were in progress at queue pairs that were reset
	armed  bool
	limit  int    // ... with this
	from   uint64 // ... when this receive was the next
	since  int    // completions of receives that were posted later
	xrc    bool
	cq     *cq // of XRC
}

// profile is what a run is like.
type profile struct {
	name      string
	strict    bool // nothing may fail but what is provoked
	faultRate float64
	killRate  float64
	cutRate   float64 // partitions
	pauseRate float64
	hideID    bool
	family    int // 4, 6, or 0 for both
	heal      simnet.Link
}

func (s *sim) build(arenas []*arena) {
	s.qps = map[qpKey]*qp{}
	s.byID = append(s.byID, nil) // content ids start at 1
	s.chooseProfile()
	nodes := s.between(2, 3)
	for i := range nodes {
		s.addNode(i, arenas[i])
	}
	rc, uc, ud := s.between(1, 5), s.rng.IntN(3), s.rng.IntN(5)
	s.addGroups()
	for range rc {
		s.addConn(ib.RC)
	}
	for range uc {
		s.addConn(ib.UC)
	}
	for range pick(s, 0, 0, 1, 2, 3) {
		s.addXRCConn()
	}
	for range ud {
		s.addDgram()
	}
}

// chooseProfile sets the network's conditions.
func (s *sim) chooseProfile() {
	p := &s.prof
	p.faultRate = pick(s, 0, 0, 0.002, 0.01)
	p.killRate = pick(s, 0, 0, 0.002, 0.01)
	p.pauseRate = pick(s, 0, 0, 0.005)
	p.family = pick(s, 4, 4, 6, 0)
	l := simnet.Link{Delay: int64(pick(s, 500, 2000, 10_000, 50_000))}
	some := func(most float64) float64 { return pick(s, 0, most/10, most) }
	all := func(most float64) {
		l.Jitter = int64(pick(s, 0, 1000, 20_000))
		l.Loss, l.Dup, l.Reorder, l.Corrupt = some(most), some(most), some(most), some(most)
	}
	switch n := s.rng.IntN(20); {
	case n < 3:
		p.name, p.strict = "perfect", true
		if s.chance(0.5) {
			p.faultRate, p.killRate, p.pauseRate = 0, 0, 0
		}
	case n < 9:
		p.name, p.strict = "light", true
		all(0.01)
	case n < 13:
		p.name = "heavy"
		all(0.1)
	case n < 15:
		p.name = "brutal"
		all(0.3)
	case n < 17:
		p.name = "narrow"
		l.Bandwidth, l.Backlog = int64(pick(s, 20, 100, 1000))<<20, int64(pick(s, 100_000, 1_000_000))
	default:
		p.name, p.cutRate = "flapping", 0.01
		all(0.01)
	}
	p.hideID = l.Corrupt == 0 && s.chance(0.2)
	s.netBad = !p.strict
	s.lossless = p.strict && l.Loss == 0 && l.Corrupt == 0 && p.cutRate == 0 && p.name != "narrow"
	s.dups, s.late = l.Dup > 0, l.Reorder > 0 || l.Dup > 0
	p.heal = simnet.Link{Delay: l.Delay}
	s.net.SetDefault(l)
	s.note("profile %s %+v, faults %v, kills %v", p.name, l, p.faultRate, p.killRate)
}

func (s *sim) addNode(i int, a *arena) {
	n := &node{id: i, arena: a, ahs: map[[2]netip.Addr]driver.AH{}, victims: map[ib.RKey]bool{}}
	a.reset()
	a.log = nil
	if s.log != nil {
		a.log = s.note
	}
	if s.prof.family != 6 {
		n.addrs = append(n.addrs, netip.AddrFrom4([4]byte{10, 0, byte(i), 1}))
	}
	if s.prof.family != 4 {
		n.addrs = append(n.addrs, netip.AddrFrom16([16]byte{0: 0xFD, 14: byte(i), 15: 6}))
	}
	if s.chance(0.3) {
		if s.prof.family == 6 {
			n.addrs = append(n.addrs, netip.AddrFrom16([16]byte{0: 0xFD, 14: byte(i), 15: 7}))
		} else {
			n.addrs = append(n.addrs, netip.AddrFrom4([4]byte{10, 0, byte(i), 2}))
		}
	}
	cfg := simnet.Config{
		Addrs: n.addrs, MaxSegs: pick(s, 1, 2, 64, 64), GRO: pick(s, 0, 0.5, 1.0), HideID: s.prof.hideID,
		TurnTime: int64(pick(s, -1, 500, 2000)),
	}
	if s.prof.name == "narrow" {
		cfg.Queue = pick(s, 32, 256, 8192)
	}
	if !s.prof.strict {
		cfg.Probe = s.chance(0.3)
		cfg.Renumber = cfg.Probe && s.chance(0.5)
	}
	n.port = s.net.NewPort(cfg)
	var err error
	n.dev, err = newDevice(soft.Config{
		Name: fmt.Sprintf("soft%d", i), Port: n.port, Addrs: n.addrs, Clock: s.net.Now,
		Seed: s.seed*8 + uint64(i) + 1, Shards: pick(s, 1, 1, 2, 3), Manual: true,
		Watch: n.watch(),
	})
	s.must("device", err)
	s.net.Attach(n.port, n.dev.Turn)
	n.pd, err = n.dev.AllocPD()
	s.must("PD", err)
	n.pd2, err = n.dev.AllocPD()
	s.must("PD", err)
	reg := func(pd driver.PD, access ib.Access) driver.MR {
		mr, err := pd.RegMR(a.mem, 0, false, access)
		s.must("MR", err)
		return mr
	}
	n.full = reg(n.pd, allRights)
	n.remRO = reg(n.pd, ib.AccessRemoteRead)
	n.locRO = reg(n.pd, 0)
	n.foreign = reg(n.pd2, allRights)
	n.binderBase = uint64(s.rng.Uint32()) << 16
	n.binder, err = n.pd.RegMR(a.mem, n.binderBase, true, allRights|ib.AccessMWBind)
	s.must("MR", err)
	s.addAnnexes(n)
	n.counter = &counter{slot: a.alloc(8, 1), seen: map[uint64]bool{}}
	n.counter.slot.fill(s.newID(nil))
	n.counter.slot.unsettle()
	n.counter.init = binary.NativeEndian.Uint64(n.counter.slot.gather())
	for range s.between(1, 3) {
		n.cqs = append(n.cqs, s.addCQ(n, 5000))
	}
	for range s.rng.IntN(3) {
		r := &srq{node: n, size: s.between(1024, 4096)}
		attr := ib.SRQAttr{MaxWR: uint32(s.between(4, 96<<10/r.size)), MaxSGE: 4}
		r.dq, err = n.dev.CreateSRQ(n.pd, &attr, func(e ib.EventType) { s.srqEvent(r, e) })
		s.must("SRQ", err)
		r.cap = int(attr.MaxWR)
		n.srqs = append(n.srqs, r)
	}
	s.note("node %d: memory %p from %#x", n.id, n.arena, n.va(0))
	s.listen(n)
	s.nodes = append(s.nodes, n)
}

func (n *node) va(off int) uint64 { return n.full.Addr() + uint64(off) }

// ah gives an address handle for an address.
func (s *sim) ah(n *node, from, to netip.Addr) driver.AH {
	if h := n.ahs[[2]netip.Addr{from, to}]; h != nil {
		return h
	}
	attr := s.vector(n, from, to)
	h, err := n.dev.CreateAH(n.pd, &attr)
	s.must("AH", err)
	n.ahs[[2]netip.Addr{from, to}] = h
	return h
}

// vector is the address vector from one address of n to another address.
func (s *sim) vector(n *node, from, to netip.Addr) ib.AHAttr {
	for i := range n.addrs {
		e, err := n.dev.GIDEntry(1, i)
		s.must("GID", err)
		if e.GID == ib.GIDFromAddr(from) {
			return ib.AHAttr{
				DGID: ib.GIDFromAddr(to), SGIDIndex: uint8(i), HopLimit: 64, IsGlobal: true, PortNum: 1,
				TrafficClass: uint8(s.rng.IntN(64) << 2), FlowLabel: s.rng.Uint32() & 0xFFFFF,
			}
		}
	}
	s.failf("no GID for %v", from)
	return ib.AHAttr{}
}

// msgSize chooses a message length that is interesting for a path MTU.
func (s *sim) msgSize(mtu int) int {
	switch n := s.rng.IntN(100); {
	case n < 6:
		return 0
	case n < 40:
		return s.between(1, 64)
	case n < 60:
		return s.between(1, mtu)
	case n < 80:
		return max(s.between(1, 4)*mtu+s.between(-1, 1), 0)
	case n < 98:
		return s.between(1, 6*mtu)
	case n < 99:
		return s.between(1, 32<<10)
	}
	return s.between(60<<10, 70<<10)
}

// forge lets a third host repeat packets of connections as its own now and
// then, with the right ICRC: nothing may come of them.
func (s *sim) forge() {
	rng := rand.New(rand.NewPCG(s.seed, 0xF0))
	s.net.Sniff(func(e *simnet.Event) {
		if e.Injected || e.Err != nil || e.Op.Transport() == roce.TransportUD || rng.IntN(200) != 0 {
			return
		}
		as16 := e.Src.Addr().As16()
		as16[13] ^= 0x77
		from := netip.AddrFrom16(as16).Unmap()
		b := bytes.Clone(e.B)
		if rng.IntN(2) == 0 && len(e.Payload) > 0 {
			b[e.Info.HdrLen] ^= 0xFF
		}
		path := roce.NewPath(from, e.Dst, e.Src.Port())
		roce.PutICRC(b[len(b)-roce.ICRCLen:], path.Compute(b, 0))
		src, dst := netip.AddrPortFrom(from, e.Src.Port()), e.Dst
		s.net.After(int64(rng.IntN(20_000)), func() { s.net.Inject(src, dst, b, 0) })
	})
}
