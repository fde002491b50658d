package verbs_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/verbs"
)

// TestXRCRandom lets several initiators send to receive queues that come and go,
// over a bad network: each message arrives once, whole, in the order of its
// initiator and where it was sent, and whoever sends to a queue that is gone learns it.
func TestXRCRandom(t *testing.T) {
	for seed := uint64(1); seed <= 12; seed++ {
		if xrcRandom(t, seed); t.Failed() {
			t.Fatalf("failed with seed %d", seed)
		}
	}
}

// xrcConn is an initiator with its target.
type xrcConn struct {
	ini, tgt *verbs.QP
	next     uint32 // number of the next message
	open     int    // posted and not complete
	failed   bool
	last     map[uint32]uint32 // newest number that arrived, by receive queue
}

// xrcInbox is a receive queue with its memory.
type xrcInbox struct {
	pd  *verbs.PD
	cq  *verbs.CQ
	srq *verbs.SRQ
	mr  *verbs.MR
	num uint32
}

const xrcSlot = 8192

func (b *xrcInbox) post(t *testing.T, slot uint64) {
	t.Helper()
	if err := b.srq.PostRecvOne(&verbs.RecvWR{WRID: slot, SGList: []verbs.SGE{b.mr.SGE(int(slot)*xrcSlot, xrcSlot)}}); err != nil {
		t.Fatal(err)
	}
}

func (b *xrcInbox) close(t *testing.T) {
	t.Helper()
	for _, f := range []func() error{b.srq.Destroy, b.cq.Destroy, b.mr.Dereg, b.pd.Dealloc} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
}

func xrcRandom(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 4))
	r := newRig(t, 9000)
	r.net.SetDefault(simnet.Link{Delay: 2000, Loss: []float64{0, .01, .03}[rng.IntN(3)], Dup: .01, Reorder: []float64{0, .05}[rng.IntN(2)]})
	x := r.b.xrcd(verbs.XRCDInitAttr{})
	src := r.a.mem(1 << 20)
	for i := range src.Bytes() {
		src.Bytes()[i] = byte(i*11 + i>>8)
	}
	inbox := func() *xrcInbox {
		b := &xrcInbox{pd: ok(r.b.ctx.AllocPD())(t), cq: ok(r.b.ctx.CreateCQ(128, nil, nil))(t)}
		b.mr = ok(b.pd.RegMR(make([]byte, 16*xrcSlot), allRights))(t)
		b.srq = ok(b.pd.CreateSRQEx(&verbs.SRQInitAttr{Attr: ib.SRQAttr{MaxWR: 16, MaxSGE: 1}, Type: ib.SRQXRC, XRCD: x, CQ: b.cq}))(t)
		b.num = b.srq.Num()
		for i := range uint64(16) {
			b.post(t, i)
		}
		return b
	}
	boxes := []*xrcInbox{inbox(), inbox(), inbox()}
	dead := map[uint32]bool{} // numbers of queues that are gone
	byTgt := map[ib.QPN]*xrcConn{}
	byIni := map[ib.QPN]*xrcConn{}
	conns := make([]*xrcConn, 3)
	dial := func() *xrcConn {
		c := &xrcConn{last: map[uint32]uint32{}}
		c.ini, c.tgt = r.xrc(x)
		byTgt[c.tgt.Num()], byIni[c.ini.Num()] = c, c
		return c
	}
	for i := range conns {
		conns[i] = dial()
	}
	arrived := 0
	receive := func() {
		var wcs [16]verbs.WC
		for _, b := range boxes {
			n, err := b.cq.Poll(wcs[:])
			if err != nil {
				t.Fatal(err)
			}
			for _, wc := range wcs[:n] {
				if wc.Status == ib.WCWRFlushErr {
					b.post(t, wc.WRID)
					continue
				}
				c := byTgt[wc.QPNum]
				if wc.Err() != nil || c == nil {
					t.Errorf("receive %+v", wc)
					continue
				}
				m := b.mr.Bytes()[wc.WRID*xrcSlot:][:wc.ByteLen]
				number, queue, off := binary.BigEndian.Uint32(m), binary.BigEndian.Uint32(m[4:]), binary.BigEndian.Uint32(m[8:])
				if queue != b.num || number <= c.last[b.num] || string(m[12:]) != string(src.Bytes()[off:][:len(m)-12]) {
					t.Errorf("message %d of %#x for queue %d came to %d after %d, or its content differs", number, wc.SrcQP, queue, b.num, c.last[b.num])
				}
				c.last[b.num] = number
				arrived++
				b.post(t, wc.WRID)
			}
		}
		n, err := r.a.cq.Poll(wcs[:])
		if err != nil {
			t.Fatal(err)
		}
		for _, wc := range wcs[:n] {
			c := byIni[wc.QPNum]
			c.open--
			if wc.Status == ib.WCSuccess {
				continue
			}
			if to := uint32(wc.WRID); !c.failed && (wc.Status != ib.WCRemInvReqErr || !dead[to]) {
				t.Errorf("a message to queue %d ended with %v", to, wc.Status)
			}
			c.failed = true
		}
	}
	for range 250 {
		switch rng.IntN(10) {
		case 0:
			if rng.IntN(4) == 0 { // a receive queue goes, another one comes
				receive()
				i := rng.IntN(len(boxes))
				dead[boxes[i].num] = true
				boxes[i].close(t)
				boxes[i] = inbox()
			}
		case 1, 2:
			r.net.Kick(r.a.port)
			r.net.RunFor(rng.Int64N(2e6))
			receive()
		default:
			i := rng.IntN(len(conns))
			c := conns[i]
			if c.failed && c.open == 0 {
				conns[i] = dial()
				continue
			}
			if c.failed || c.open == 12 {
				continue
			}
			b := boxes[rng.IntN(len(boxes))]
			c.next++
			off, n := rng.IntN(1<<20-xrcSlot), rng.IntN(xrcSlot-12)
			head := ok(r.a.pd.RegMR(make([]byte, 12), allRights))(t)
			r.a.later(head.Dereg)
			h := head.Bytes()
			binary.BigEndian.PutUint32(h, c.next)
			binary.BigEndian.PutUint32(h[4:], b.num)
			binary.BigEndian.PutUint32(h[8:], uint32(off))
			err := c.ini.PostSendOne(&verbs.SendWR{
				WRID: uint64(b.num), Opcode: ib.WRSend, Flags: ib.SendSignaled, RemoteSRQN: b.num,
				SGList: []verbs.SGE{head.SGE(0, 12), src.SGE(off, n)},
			})
			if err != nil {
				t.Fatal(err)
			}
			c.open++
		}
		if t.Failed() {
			return
		}
	}
	r.net.SetDefault(simnet.Link{Delay: 2000})
	for range 200 {
		r.net.Kick(r.a.port)
		r.net.RunFor(5e6)
		receive()
	}
	for _, c := range byIni {
		if c.open != 0 {
			t.Errorf("%d sends of %#x did not complete", c.open, c.ini.Num())
		}
	}
	st := r.a.soft.Stats()
	t.Logf("seed %d: %d messages arrived, %d initiators, %d receive queues went, %d packets repeated", seed, arrived, len(byIni), len(dead), st.Retransmits)
	if arrived < 50 {
		t.Errorf("only %d messages arrived", arrived)
	}
	for _, b := range boxes {
		b.close(t)
	}
}
