package simtest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

var (
	flagSeeds   = flag.Int("sim.seeds", 20, "number of seeds to simulate")
	flagSeed    = flag.Uint64("sim.seed", 0, "simulate this seed only, with a trace if it fails; 0: seeds from sim.first on")
	flagFirst   = flag.Uint64("sim.first", 0, "first seed; 0: by the clock for more than the default, else 1")
	flagTrace   = flag.Int("sim.trace", 400, "lines of the trace that -sim.seed prints")
	flagPackets = flag.Int("sim.packets", 20000, "packets of a seed, about")
)

// TestSimulation runs random work of many queue pairs over a bad network and
// compares everything that can be seen with the model.
func TestSimulation(t *testing.T) {
	if *flagSeed != 0 {
		w := newWorker()
		if msg := w.run(*flagSeed, t.Logf); msg != "" {
			t.Fatal(msg)
		}
		return
	}
	first, seeds := *flagFirst, *flagSeeds
	if testing.Short() {
		seeds = min(seeds, 5)
	}
	if first == 0 {
		first = 1
		if seeds > 100 {
			first = uint64(time.Now().UnixNano()) >> 10 & 0xFFFFFFFF
		}
	}
	t.Logf("seeds %d to %d", first, first+uint64(seeds)-1)
	var next, failed atomic.Uint64
	var wg sync.WaitGroup
	var mu sync.Mutex
	var total totals
	for range runtime.GOMAXPROCS(0) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			w := newWorker()
			for failed.Load() < 5 {
				i := next.Add(1) - 1
				if i >= uint64(seeds) {
					break
				}
				if msg := w.run(first+i, nil); msg != "" {
					failed.Add(1)
					t.Errorf("seed %d: %s\nreplay: go test ./internal/simtest -run TestSimulation -sim.packets=%d -sim.seed=%d -v", first+i, msg, *flagPackets, first+i)
				}
			}
			mu.Lock()
			total.add(&w.total)
			mu.Unlock()
		}()
	}
	wg.Wait()
	t.Log(total.String())
	if failed.Load() == 0 && seeds >= 20 {
		total.covered(t)
	}
}

// TestSimulationDeterministic runs seeds twice: each packet and each
// completion must be the same, else a seed would not replay.
func TestSimulationDeterministic(t *testing.T) {
	for seed := uint64(1); seed <= 5; seed++ {
		w := newWorker()
		var sum [2]uint64
		for i := range sum {
			w.hash = 1
			if msg := w.run(seed, nil); msg != "" {
				t.Fatalf("seed %d: %s", seed, msg)
			}
			sum[i] = w.hash
		}
		if sum[0] != sum[1] {
			t.Errorf("seed %d gives two different runs", seed)
		}
	}
}

// worker runs seeds, one after the other, in the same memory.
type worker struct {
	arenas []*arena
	total  totals
	hash   uint64 // 0: off
}

func newWorker() *worker {
	return &worker{arenas: []*arena{newArena(), newArena(), newArena()}}
}

type totals struct {
	proto          transport.Stats
	seeds, packets uint64
	stats
}

func (t *totals) add(o *totals) {
	t.proto.Add(&o.proto)
	t.seeds += o.seeds
	t.packets += o.packets
	t.posted += o.posted
	t.success += o.success
	t.failed += o.failed
	t.flushed += o.flushed
	t.received += o.received
	t.revived += o.revived
	t.actions += o.actions
	t.keyUses += o.keyUses
	t.keysBorn += o.keysBorn
	t.keysDied += o.keysDied
	t.remoteInvs += o.remoteInvs
	t.xrc += o.xrc
	t.copies += o.copies
	t.overruns += o.overruns
	t.srqs += o.srqs
	t.limits += o.limits
}

// covered checks that the runs met what they are for.
func (t *totals) covered(tb testing.TB) {
	p := &t.proto
	for what, n := range map[string]uint64{
		"success": uint64(t.success), "failures": uint64(t.failed), "flushes": uint64(t.flushed),
		"messages": uint64(t.received), "revivals": uint64(t.revived),
		"duplicates": p.DuplicateReq, "gaps": p.OutOfSeq, "RNR NAKs": p.RcvdRNR, "sequence NAKs": p.RcvdSeqNAK,
		"retries exceeded": p.RetryExceeded, "timeouts": p.LocalTimeouts, "retransmissions": p.Retransmits,
		"lost responses": p.ImpliedNAK, "ICRC errors": p.DropICRC, "unknown queue pairs": p.DropNoQP, "stale responses": p.DropStale,
		"keys that were made": uint64(t.keysBorn), "... and ended": uint64(t.keysDied), "... by the peer": uint64(t.remoteInvs),
		"... and used": uint64(t.keyUses), "XRC requests": uint64(t.xrc), "copies to groups": uint64(t.copies),
		"queues that overran": uint64(t.overruns), "XRC receive queues that went": uint64(t.srqs), "limits of shared queues": uint64(t.limits),
		"foreign sources": p.DropSource, "UC gaps": p.DropSequence, "datagrams without receive": p.DropNoRecv,
	} {
		if n == 0 {
			tb.Errorf("no %s in %d seeds", what, t.seeds)
		}
	}
}

func (t *totals) String() string {
	return fmt.Sprintf("%d seeds, %d packets, %d requests (%d succeeded, %d failed, %d flushed), %d messages received, %d connections revived; "+
		"%d keys made and %d ended, %d of them by the peer, used %d times; %d XRC requests; %d copies to groups; %d queues overran; %d shared queues went",
		t.seeds, t.packets, t.posted, t.success, t.failed, t.flushed, t.received, t.revived,
		t.keysBorn, t.keysDied, t.remoteInvs, t.keyUses, t.xrc, t.copies, t.overruns, t.srqs)
}

// run simulates one seed and returns what is wrong, "" for nothing.
func (w *worker) run(seed uint64, log func(string, ...any)) (msg string) {
	s := &sim{seed: seed, rng: rand.New(rand.NewPCG(seed, 0x51A)), net: simnet.New(seed ^ 0xABCDEF)}
	if log != nil {
		s.trace = newTrace(s.net)
		s.log = s.trace.note
	}
	if w.hash != 0 {
		s.net.Sniff(func(e *simnet.Event) {
			for _, b := range e.B {
				w.hash = (w.hash ^ uint64(b)) * 0x100000001B3
			}
			w.hash += uint64(e.Arrives)
		})
	}
	defer func() {
		st := s.net.Stats()
		var proto transport.Stats
		for _, n := range s.nodes {
			st := n.dev.Stats()
			proto.Add(&st)
		}
		w.total.add(&totals{
			proto, 1, st.Sent, s.stats,
		})
		switch r := recover().(type) {
		case nil:
			if log != nil {
				log("%s: %+v, %+v", s.prof.name, s.stats, st)
			}
			return
		case failure:
			msg = fmt.Sprintf("%s network: %s", s.prof.name, r.msg)
		default:
			msg = fmt.Sprintf("%s network, at %d ns: panic: %v\n%s", s.prof.name, s.net.Now(), r, debug.Stack())
		}
		if log != nil {
			msg += "\n" + s.trace.String()
		}
		for _, n := range s.nodes {
			_ = n.dev.Close() // unpins what is registered
		}
	}()
	s.build(w.arenas)
	if s.chance(0.2) {
		s.forge()
	}
	s.work()
	s.drain()
	s.takeDown()
	return ""
}

// work does random things until enough packets were sent.
func (s *sim) work() {
	for int(s.net.Stats().Sent) < *flagPackets && s.stats.actions < 5500 {
		s.stats.actions++
		s.act()
		s.step(int64(pick(s, 0, 1000, 10_000, 100_000)))
		if s.chance(0.5) {
			s.poll()
		}
		if s.stats.actions%256 == 0 {
			s.checkMemory()
		}
	}
}

// step lets some time pass.
func (s *sim) step(d int64) {
	end, steps := s.net.Now()+d, 0
	s.net.Run(func() bool {
		if steps++; steps > 1_000_000 {
			s.failf("a million steps in %d ns", d)
		}
		return s.net.Now() >= end
	}, d)
	s.net.RunFor(max(end-s.net.Now(), 0))
}

func (s *sim) act() {
	n := s.rng.IntN(len(s.conns) + len(s.dgrams))
	var q *qp
	var c *conn
	if n < len(s.conns) {
		c = s.conns[n]
		if q = pick(s, c.a, c.b); q.typ == ib.XRCRecv && s.chance(0.7) {
			q = c.a // which has more to do
		}
	} else {
		q = s.dgrams[n-len(s.conns)]
	}
	switch {
	case s.chance(s.prof.killRate):
		s.kill(q, s.rng.IntN(3))
		return
	case s.chance(s.prof.cutRate):
		s.cut()
	case s.chance(s.prof.pauseRate):
		s.net.Pause(pick(s, s.nodes...).port, int64(s.between(0, 1_000_000)))
	}
	if c != nil && (!c.a.up || !c.b.up || c.a.failed && c.a.rel() || c.b.failed && c.b.rel()) {
		if s.chance(0.3) {
			s.revive(c)
		}
	} else if c == nil && !q.up {
		if s.chance(0.3) {
			s.reviveDgram(q)
		}
	}
	if q.sqe && s.chance(0.5) {
		s.resume(q)
	}
	if q.sqd && s.chance(0.3) {
		s.release(q)
	} else if s.chance(0.01) {
		s.hold(q)
	}
	if s.chance(0.01) {
		// Fewer than may be outstanding is not asked for.
		s.must("CQ resize", pick(s, q.node.cqs...).dq.Resize(s.between(5000, 6000)))
	}
	if s.chance(0.1) {
		s.enlist(q)
	}
	if s.chance(0.02) {
		s.moderate(pick(s, q.node.cqs...))
	}
	if s.chance(0.01) {
		s.change(q.node)
	}
	if n := len(q.node.xsrqs); n > 0 && s.chance(s.prof.killRate) {
		s.endXSRQ(q.node)
	}
	if s.chance(0.15) {
		s.keyWork(q)
	}
	if s.chance(0.6) {
		s.post(q)
	}
	if s.chance(0.4) {
		s.postRecvs(q)
	}
}

func (s *sim) reviveDgram(q *qp) {
	s.kill(q, s.rng.IntN(3))
	s.poll()
	if q.dq == nil {
		s.createQP(q)
	} else {
		s.must("RESET", q.dq.Modify(&ib.QPAttr{QPState: ib.QPStateReset}, ib.QPAttrState))
	}
	s.stats.revived++
	s.startDgram(q)
}

// cut parts two nodes for a while, sometimes long enough for retries to end.
func (s *sim) cut() {
	a, b := pick(s, s.nodes...), pick(s, s.nodes...)
	set := func(cut bool) {
		for _, x := range a.addrs {
			for _, y := range b.addrs {
				s.net.SetPartition(x, y, cut)
			}
		}
	}
	s.note("nodes %d and %d are parted", a.id, b.id)
	set(true)
	s.net.After(int64(pick(s, 100_000, 5_000_000, 300_000_000)), func() { set(false) })
}

func (s *sim) checkMemory() {
	for _, n := range s.nodes {
		if err := n.arena.check(); err != nil {
			s.failf("node %d: %v", n.id, err)
		}
		for _, a := range n.annexes {
			if err := a.check(); err != nil {
				s.failf("node %d, annex: %v", n.id, err)
			}
		}
	}
}

// drain heals the network and waits until everything posted is complete.
func (s *sim) drain() {
	s.note("drain")
	s.net.SetDefault(s.prof.heal)
	for _, a := range s.nodes {
		for _, b := range s.nodes {
			for _, x := range a.addrs {
				for _, y := range b.addrs {
					s.net.SetLink(x, y, s.prof.heal)
				}
			}
		}
	}
	for range 80 { // partitions end, victims are gone
		s.step(5_000_000)
		s.poll()
		for _, q := range s.live() {
			s.postRecvs(q)
		}
	}
	for _, a := range s.nodes {
		for _, b := range s.nodes {
			for _, x := range a.addrs {
				for _, y := range b.addrs {
					s.net.SetLink(x, y, s.prof.heal)
				}
			}
		}
	}
	// A last signaled request on each queue pair tells when all before are done.
	marked := map[*qp]bool{}
	deadline := s.net.Now() + 120_000_000_000
	for {
		s.poll()
		waiting := 0
		for _, q := range s.live() {
			if q.peer != nil && q.peer.dq != nil && q.peer.up || q.typ == ib.UD {
				s.postRecvs(q)
			}
			if q.sqe {
				s.resume(q)
			}
			s.release(q)
			if !marked[q] && len(q.sendq) < int(q.cap.MaxSendWR) && !q.sqe && q.rel() && q.typ != ib.XRCRecv {
				s.mark(q)
				marked[q] = true
			}
			waiting += s.waits(q)
		}
		if waiting == 0 {
			break
		}
		if s.net.Now() > deadline {
			for _, q := range s.live() {
				if n := s.waits(q); n > 0 {
					s.failf("%v is stuck: %d requests, first op %d (%v, %d bytes); its peer is %v", q, n, q.sendq[0].id, q.sendq[0].code, q.sendq[0].n, q.peer)
				}
			}
		}
		s.step(5_000_000)
	}
	s.step(100_000_000)
	s.poll()
	for _, c := range s.conns {
		for _, q := range s.ends(c) {
			if q.rel() && q.up && !q.failed && q.peer.up && !q.peer.failed && q.out.got != len(q.out.msgs) {
				s.failf("queue pair %d: %d messages succeeded, %d received", q.id, len(q.out.msgs), q.out.got)
			}
		}
	}
	if n := s.net.InFlight(); n > 0 {
		s.failf("the network is not idle: %d events", n)
	}
	for _, n := range s.nodes {
		if err := n.dev.Busy(); err != nil {
			s.failf("node %d is idle: %v", n.id, err)
		}
	}
	for _, q := range s.live() {
		if len(q.sendq) == 0 {
			s.checkCounts(q)
		}
	}
	s.checkMemory()
	s.checkCopies()
	s.checkCalm()
}

// checkCalm looks at a run in which nothing was lost and nobody was disturbed:
// no timer may have been needed and nothing sent twice.
func (s *sim) checkCalm() {
	if !s.isCalm() || s.stats.failed > 0 || s.stats.revived > 0 {
		return
	}
	for _, n := range s.nodes {
		if st := n.dev.Stats(); st.LocalTimeouts > 0 || st.RcvdSeqNAK > 0 || st.DuplicateReq > 0 || st.CompleterRetry > 0 {
			s.failf("node %d: %d timeouts, %d sequence NAKs, %d duplicates, %d responses lost on a perfect network",
				n.id, st.LocalTimeouts, st.RcvdSeqNAK, st.DuplicateReq, st.CompleterRetry)
		}
	}
}

// live are the queue pairs that exist and are connected.
func (s *sim) live() (l []*qp) {
	for _, c := range s.conns {
		for _, q := range s.ends(c) {
			if q.dq != nil && q.up {
				l = append(l, q)
			}
		}
	}
	for _, q := range s.dgrams {
		if q.dq != nil && q.up {
			l = append(l, q)
		}
	}
	return l
}

// waits is the number of requests for which a completion must come.
func (s *sim) waits(q *qp) (n int) {
	for _, o := range q.sendq {
		if o.signal || q.rel() {
			n++
		}
	}
	return n
}

// mark posts a WRITE of nothing, or a READ where the far end allows no WRITE.
func (s *sim) mark(q *qp) {
	o := &op{id: uint64(len(s.ops)), q: q, num: q.dq.Num(), code: ib.WRRDMAWrite, flags: ib.SendSignaled, signal: true, msg: -1, at: s.net.Now()}
	if q.conn.attr.access&ib.AccessRemoteWrite == 0 {
		o.code = ib.WRRDMARead
		o.dst = q.node.arena.allocRecv(0, 1)
	}
	s.ops = append(s.ops, o)
	q.sendq = append(q.sendq, o)
	wr := driver.SendWR{WRID: o.id, Opcode: o.code, Flags: o.flags}
	if q.typ == ib.XRCSend {
		o.xsrq = q.peer.node.xsrqs[0]
		wr.RemoteSRQN = o.xsrq.dq.Num()
	}
	s.submit(q, []driver.SendWR{wr}, []*op{o})
}

// takeDown destroys everything and looks for what is left.
func (s *sim) takeDown() {
	for _, c := range s.conns {
		for _, q := range s.ends(c) {
			s.kill(q, s.rng.IntN(3))
		}
		s.settleConn(c)
	}
	for _, q := range s.dgrams {
		s.kill(q, s.rng.IntN(3))
	}
	s.step(1_000_000)
	s.poll()
	s.checkMemory()
	for _, n := range s.nodes {
		s.settleCounter(n)
	}
	for _, n := range s.nodes {
		s.destroyNode(n)
	}
	if n := s.net.Buffers(); n != 0 {
		s.failf("%d datagrams are left", n)
	}
}

func (s *sim) destroyNode(n *node) {
	if s.chance(0.2) {
		s.vanish(n)
	}
	if n.pd.Dealloc() == nil {
		s.failf("a protection domain in use was deallocated")
	}
	all := append([]*qp{}, s.dgrams...)
	for _, c := range s.conns {
		all = append(all, s.ends(c)...)
	}
	for _, q := range all {
		if q.node == n && q.dq != nil {
			s.destroy(q)
		}
	}
	if n.xrcd != nil && n.xrcd.Close() == nil {
		s.failf("an XRC domain in use was closed")
	}
	for _, r := range append(n.srqs, n.xsrqs...) {
		s.must("destroy SRQ", r.dq.Destroy())
	}
	for _, h := range n.handles(s) {
		s.must("destroy AH", h.Destroy())
	}
	for _, c := range append(n.cqs, n.risky...) {
		s.must("destroy CQ", c.dq.Destroy())
	}
	for len(n.holders) > 0 {
		s.endHolder(n.holders[0])
	}
	s.endAnnexes(n)
	for _, mr := range []driver.MR{n.full, n.remRO, n.locRO, n.foreign, n.binder} {
		s.must("dereg", mr.Dereg())
	}
	if n.xrcd != nil {
		s.must("XRC domain", n.xrcd.Close())
	}
	s.must("PD", n.pd.Dealloc())
	s.must("PD", n.pd2.Dealloc())
	if err := n.dev.Leaks(); err != nil {
		s.failf("node %d leaks: %v", n.id, err)
	}
	s.must("close", n.dev.Close())
}
