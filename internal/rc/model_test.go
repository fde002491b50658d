package rc

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

var (
	modelSeed  = flag.Uint64("seed", 0, "run the model test with this seed only")
	modelSeeds = flag.Int("seeds", 60, "number of seeds of the model test")
)

// weather is what the network does to packets.
type weather struct {
	loss, dup, late float64
}

// TestModel does random work in both directions over a bad network, and
// compares memory, completions and order with a model that executes the work at
// once.
func TestModel(t *testing.T) {
	if *modelSeed != 0 {
		model(t, *modelSeed)
		return
	}
	for seed := uint64(1); seed <= uint64(*modelSeeds); seed++ {
		model(t, seed)
		if t.Failed() {
			t.Fatalf("failed with -seed %d", seed)
		}
	}
}

// Layout of a side's memory: sources that never change, targets that WRITEs,
// READs and SENDs of the one direction fill, and cells for atomics.
const (
	mSource  = 0
	mTarget  = 100_000 // remote WRITEs
	mSink    = 250_000 // own READs
	mInbox   = 400_000 // receives
	mCell    = 550_000 // remote atomics
	mResult  = 551_000 // their results
	mArea    = 100_000
	mRecvLen = 6_000
)

// expectation of one direction: from s to s.peer.
type modelDir struct {
	s      *side
	rng    *rand.Rand
	posted int
	done   int
	ops    []ib.WROpcode
	lens   []int
	cell   uint64
	orig   []uint64 // expected result of each atomic
	result []int    // offset of it
	recvs  []int    // lengths of SENDs, -1-n: WRITE_IMM of n
	imms   []uint32
	got    int
	rposts int
	target []byte // mirror of the peer's target area
	sink   []byte
	inbox  []byte
}

func model(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	o := defaults()
	o.mtu = ib.MTU(1 + rng.IntN(5))
	o.rd = uint8(1 + rng.IntN(4))
	o.psn = rng.Uint32() & 0xFFFFFF
	o.timeout, o.rnrTimer = 10, uint8(1+rng.IntN(12))
	o.segs = []int{1, 2, 64}[rng.IntN(3)]
	o.access |= flushRightsAll
	o.mrAccess |= flushRightsAll
	w := newWorld(t, o)
	w.mute = true
	wt := [...]weather{{}, {loss: .02}, {loss: .05, dup: .05}, {loss: .02, dup: .02, late: .05}, {late: .2}, {dup: .3}}[rng.IntN(6)]
	w.hook = func(*seen, *roce.Packet) fate {
		switch x := rng.Float64(); {
		case x < wt.loss:
			return drop
		case x < wt.loss+wt.dup:
			return dup
		}
		return pass
	}
	w.lag = func() int64 {
		if rng.Float64() < wt.late {
			return 1000 + rng.Int64N(100_000)
		}
		return 1000
	}
	var dirs [2]*modelDir
	for i, s := range []*side{w.a, w.b} {
		fill(s.buf[mSource:mArea], byte(rng.Uint32()))
		d := &modelDir{s: s, rng: rng, target: make([]byte, mArea), sink: make([]byte, mArea), inbox: make([]byte, mArea)}
		dirs[i] = d
	}
	total := 20 + rng.IntN(60)
	for round := 0; ; round++ {
		busy := false
		for _, d := range dirs {
			for d.posted < total && d.posted-d.done < 40 && rng.IntN(3) > 0 {
				d.post()
			}
			d.s.kick()
			for d.rposts < len(d.recvs)+3 && d.rposts-d.got < 50 && rng.IntN(2) > 0 {
				d.postRecv()
			}
			if d.check(); t.Failed() {
				return
			}
			busy = busy || d.done < total
		}
		if !busy {
			break
		}
		w.run(w.now + rng.Int64N(3*ms))
		if round > 100_000 {
			t.Fatalf("seed %d: stuck: %d and %d of %d are done", seed, dirs[0].done, dirs[1].done, total)
		}
	}
	w.hook, w.lag = nil, nil
	w.run(0)
	for _, d := range dirs {
		d.check()
		p := d.s.peer
		if !same(p.buf[mTarget:mTarget+mArea], d.target) {
			t.Errorf("WRITE targets differ")
		}
		if !same(d.s.buf[mSink:mSink+mArea], d.sink) {
			t.Errorf("READ sinks differ")
		}
		if !same(p.buf[mInbox:mInbox+mArea], d.inbox) {
			t.Errorf("inboxes differ")
		}
		if v := binary.NativeEndian.Uint64(p.buf[mCell:]); v != d.cell {
			t.Errorf("cell is %d, want %d", v, d.cell)
		}
		for i, off := range d.result {
			if v := binary.NativeEndian.Uint64(d.s.buf[off:]); v != d.orig[i] {
				t.Errorf("atomic %d returned %d, want %d", i, v, d.orig[i])
			}
		}
		if d.got != len(d.recvs) {
			t.Errorf("%d receives of %d", d.got, len(d.recvs))
		}
	}
	w.idle()
}

// length picks a message length up to most.
func (d *modelDir) length(most int) int {
	m := d.s.q.MTU
	switch d.rng.IntN(5) {
	case 0:
		return d.rng.IntN(16)
	case 1:
		return min(m*d.rng.IntN(4), most)
	case 2:
		return min(m*d.rng.IntN(4)+1, most)
	}
	return d.rng.IntN(most)
}

func (d *modelDir) post() {
	s, rng := d.s, d.rng
	id := uint64(d.posted)
	d.posted++
	var wr driver.SendWR
	switch rng.IntN(9) {
	case 0, 1:
		n := d.length(30_000)
		from, to := rng.IntN(mArea-n), rng.IntN(mArea-n)
		wr = s.write(id, mSource+from, mTarget+to, n)
		copy(d.target[to:to+n], s.buf[mSource+from:])
		if rng.IntN(3) == 0 {
			wr.Opcode, wr.ImmData = ib.WRRDMAWriteWithImm, rng.Uint32()
			d.recvs, d.imms = append(d.recvs, -1-n), append(d.imms, wr.ImmData)
		}
	case 2, 3:
		n := d.length(mRecvLen)
		from := rng.IntN(mArea - n)
		wr = s.sendWR(id, mSource+from, n)
		imm := uint32(0)
		if rng.IntN(2) == 0 {
			imm = rng.Uint32() | 1
			wr.Opcode, wr.ImmData = ib.WRSendWithImm, imm
		}
		copy(d.inbox[d.slot(len(d.recvs)):], s.buf[mSource+from:mSource+from+n])
		d.recvs, d.imms = append(d.recvs, n), append(d.imms, imm)
	case 4, 5:
		n := d.length(mArea - 1)
		from, to := rng.IntN(mArea-n), rng.IntN(mArea-n)
		wr = s.read(id, mSink+to, mSource+from, n)
		copy(d.sink[to:to+n], s.peer.buf[mSource+from:])
	case 6:
		word := binary.NativeEndian.AppendUint64(nil, rng.Uint64())
		if to := mTarget + 8*rng.IntN(mArea/8); rng.IntN(2) == 0 {
			wr = s.wordWR(id, to, word)
			copy(d.target[to-mTarget:], word)
		} else {
			wr = s.wordWR(id, mCell, word)
			d.cell = binary.NativeEndian.Uint64(word)
		}
	case 7:
		wr = s.flushWR(id, mTarget, mArea, ib.FlushGlobal, ib.FlushLevel(rng.IntN(2)))
	default:
		off := mResult + 8*len(d.result)
		op, arg, swap := ib.WRAtomicFetchAndAdd, rng.Uint64(), uint64(0)
		d.result, d.orig = append(d.result, off), append(d.orig, d.cell)
		if rng.IntN(2) == 0 {
			op, arg, swap = ib.WRAtomicCmpAndSwp, d.cell, arg
			if rng.IntN(3) == 0 {
				arg++
			} else {
				d.cell = swap
			}
		} else {
			d.cell += arg
		}
		wr = s.atomicWR(id, op, off, mCell, arg, swap)
	}
	if rng.IntN(8) == 0 {
		wr.Flags |= ib.SendFence
	}
	d.ops, d.lens = append(d.ops, wr.Opcode), append(d.lens, 0)
	s.push(wr)
}

// slot is the offset in the inbox of the i-th receive. Later ones overwrite.
func (d *modelDir) slot(i int) int { return i * mRecvLen % (mArea - mRecvLen) }

func (d *modelDir) postRecv() {
	p := d.s.peer
	p.recv(uint64(d.rposts), p.sge(mInbox+d.slot(d.rposts), mRecvLen))
	d.rposts++
}

// check compares what has completed with what is next in order.
func (d *modelDir) check() {
	t := d.s.w.t
	for _, wc := range poll(d.s.scq) {
		if wc.WRID != uint64(d.done) || wc.Status != ib.WCSuccess {
			t.Errorf("%s: completion %d is %d: %v", d.s.name, d.done, wc.WRID, wc.Status)
			return
		}
		d.done++
	}
	for _, wc := range poll(d.s.peer.rcq) {
		if d.got >= len(d.recvs) {
			t.Errorf("a receive too many: %+v", wc)
			return
		}
		n, op := d.recvs[d.got], ib.WCRecv
		if n < 0 {
			n, op = -1-n, ib.WCRecvRDMAWithImm
		}
		got := fmt.Sprint(wc.WRID, wc.Status, wc.Opcode, wc.ByteLen, wc.ImmData)
		if want := fmt.Sprint(d.got, ib.WCSuccess, op, n, d.imms[d.got]); got != want {
			t.Errorf("receive: %s, want %s", got, want)
			return
		}
		d.got++
	}
}
