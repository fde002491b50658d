package rc

import (
	"math/rand/v2"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// TestHostilePackets lets a peer that knows addresses and keys send anything:
// nothing may panic, write outside of what it may write, complete a request
// twice or leave the window wrong.
func TestHostilePackets(t *testing.T) {
	for seed := range uint64(400) {
		hostile(t, seed)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func hostile(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	o := defaults()
	o.mtu, o.bufs, o.timeout, o.rnrTimer = ib.MTU256, 32<<10, 5, 1
	o.psn = rng.Uint32() & 0xFFFFFF
	o.access |= flushRightsAll
	w := newWorld(t, o)
	w.mute = true
	w.hook = func(s *seen, _ *roce.Packet) fate {
		if s.from == w.a || rng.IntN(2) == 0 {
			return drop // the real peer is rarely heard
		}
		return pass
	}
	s := w.a
	fill(s.buf, 1)
	secret := append([]byte{}, s.buf[16<<10:]...)
	// Only the lower half is there for the peer; the region is read again here.
	open := s.register(s.buf[:16<<10], allRemote|ib.AccessLocalWrite|flushRightsAll)
	s.persisted(nil)
	if err := s.tab.Remove(s.mr); err != nil {
		t.Fatal(err)
	}
	s.mr = open
	posted := 0
	for range 8 {
		s.recv(uint64(100+posted), s.sge(rng.IntN(8<<10), rng.IntN(2000)))
		switch rng.IntN(6) {
		case 4:
			s.push(s.flushWR(uint64(posted), 0, 8, ib.FlushGlobal, ib.FlushMR))
		case 5:
			s.push(s.wordWR(uint64(posted), 0, make([]byte, 8)))
		case 0:
			s.push(s.write(uint64(posted), 0, 0, rng.IntN(3000)))
		case 1:
			s.push(s.sendWR(uint64(posted), 0, rng.IntN(3000)))
		case 2:
			s.push(s.read(uint64(posted), 0, 0, rng.IntN(3000)))
		default:
			s.push(s.atomicWR(uint64(posted), ib.WRAtomicFetchAndAdd, 0, 0, 1, 0))
		}
		posted++
	}
	s.kick()
	for range 60 {
		op := roce.Opcode(rng.IntN(256))
		if rng.IntN(8) > 0 {
			op = roce.Opcode(rng.IntN(0x18))
			if rng.IntN(6) == 0 {
				op = []roce.Opcode{roce.OpRCFlush, roce.OpRCAtomicWrite}[rng.IntN(2)]
			}
		}
		base := uint32(s.qp.rsp.epsn)
		if op.Info().Flags.Any(roce.FlagResponse) {
			base = uint32(s.qp.req.una)
		}
		n := []int{0, 1, 8, 255, 256, 257, 300}[rng.IntN(7)]
		length := []uint32{0, uint32(n), 512, 600, 5000, 1 << 31, 1<<32 - 1}[rng.IntN(7)]
		va := open.Addr() + []uint64{0, 0, 8, 4, 16<<10 - 8, 16 << 10, 1 << 63}[rng.IntN(7)]
		syn := roce.Syndrome(rng.Uint32())
		if rng.IntN(2) == 0 {
			syn = roce.AckNoCredit
		}
		s.inject(op, base+uint32(rng.IntN(5))*uint32(rng.IntN(2))-uint32(rng.IntN(3))*uint32(rng.IntN(2)), rng.IntN(2) == 0, make([]byte, n), func(h []byte, i *roce.OpInfo) {
			if i.RETH != 0 {
				roce.RETH(h[i.RETH:]).Put(va, uint32(open.RKey()), length)
			}
			if i.AETH != 0 {
				roce.AETH(h[i.AETH:]).Put(syn, rng.Uint32())
			}
			if i.AtomicETH != 0 {
				roce.AtomicETH(h[i.AtomicETH:]).Put(va, uint32(open.RKey()), 1, 0)
			}
			if i.FETH != 0 {
				roce.FETH(h[i.FETH:]).Put(uint8(rng.IntN(16)), uint8(rng.IntN(4)))
			}
		})
		w.run(w.now + rng.Int64N(200_000))
	}
	w.run(0)
	if !same(secret, s.buf[16<<10:]) {
		t.Error("memory that is not registered was written")
	}
	sends, recvs := poll(s.scq), poll(s.rcq)
	for i, wc := range sends {
		if wc.WRID != uint64(i) {
			t.Errorf("completion %d is of request %d", i, wc.WRID)
		}
	}
	if len(sends) != posted {
		t.Errorf("%d completions of %d", len(sends), posted)
	}
	for i, wc := range recvs {
		if wc.WRID != uint64(100+i) {
			t.Errorf("receive %d is of request %d", i, wc.WRID)
		}
	}
	if !s.q.Dest.Idle() {
		t.Error("the window is not empty")
	}
}
