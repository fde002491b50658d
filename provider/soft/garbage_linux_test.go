package soft

import (
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// raw is a plain UDP socket that says what it likes.
type raw struct {
	t    testing.TB
	c    *net.UDPConn
	addr netip.AddrPort
}

func newRaw(t testing.TB, from netip.AddrPort) *raw {
	t.Helper()
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(from))
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return &raw{t, c, c.LocalAddr().(*net.UDPAddr).AddrPort()}
}

func (r *raw) send(to netip.Addr, b []byte) {
	r.t.Helper()
	if _, err := r.c.WriteToUDPAddrPort(b, netip.AddrPortFrom(to, roce.Port)); err != nil {
		r.t.Fatal(err)
	}
}

// make builds an RC WRITE_ONLY of 8 bytes; identification 0 is what the kernel
// gives a socket like ours.
func (r *raw) write(to netip.Addr, q ib.QPN, p uint32, pkey uint16, mr driver.MR) []byte {
	const n = roce.BTHLen + roce.RETHLen
	b := make([]byte, n+8+roce.ICRCLen)
	roce.BTH(b).Put(roce.OpRCWriteOnly, false, 0, pkey, uint32(q), true, psn.PSN(p))
	roce.RETH(b[roce.BTHLen:]).Put(mr.Addr(), uint32(mr.RKey()), 8)
	for i := range 8 {
		b[n+i] = 0xEE
	}
	r.seal(to, b)
	return b
}

func (r *raw) seal(to netip.Addr, b []byte) {
	path := roce.NewPath(r.addr.Addr().Unmap(), to, r.addr.Port())
	roce.PutICRC(b[len(b)-roce.ICRCLen:], path.Compute(b, 0))
}

// Whatever arrives is counted and disturbs nobody: random bytes, packets cut at
// every length, and good packets but for one thing.
func TestGarbage(t *testing.T) {
	ha, hb := newHost(t, setup{}), newHost(t, setup{shards: 2})
	a, b := ha.qp(ib.RC, 0), hb.qp(ib.RC, 0)
	join(a, b, ib.MTU1024)
	ud, uc := hb.qp(ib.UD, 0), hb.qp(ib.UC, 0)
	ud.up(ud, 0)
	uc.up(a, ib.MTU1024)
	stranger := newRaw(t, netip.AddrPortFrom(loopAddr(), 0))
	peer := newRaw(t, netip.AddrPortFrom(ha.addrs[0], 0)) // another port of the peer's address
	to := hb.addrs[0]
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))

	// Batches are small, so that no receive buffer overflows: what is counted is
	// what was sent.
	batch := func(what string, count func(transport.Stats) uint64, n int, f func()) {
		t.Helper()
		before, rx := hb.dev.Stats(), hb.dev.PortStats().RxDgrams
		for range n {
			f()
		}
		// The engine has read them all when it has read one more than there were.
		for hb.dev.PortStats().RxDgrams < rx+uint64(n) {
			hb.dev.Progress()
		}
		if after := hb.dev.Stats(); count(after)-count(before) != uint64(n) {
			t.Errorf("%s: %d of %d counted: %+v", what, count(after)-count(before), n, after)
		}
	}
	drops := func(s transport.Stats) (n uint64) {
		return s.DropShort + s.DropVersion + s.DropOpcode + s.DropPad + s.DropICRC + s.DropID + s.DropNoQP + s.DropSource +
			s.DropTransport + s.DropPKey + s.DropGSI + s.DropMulticast + s.DropState + s.DropQKey + s.CNPIgnored
	}
	from := peer
	for range 5 {
		batch("random bytes", drops, 100, func() {
			p := make([]byte, 1+rnd.IntN(200))
			for i := range p {
				p[i] = byte(rnd.Uint32())
			}
			if len(p) > 8 && rnd.IntN(2) == 0 { // for a queue pair that is there
				q := []*end{b, ud, uc}[rnd.IntN(3)].Num()
				p[1] &= 0xF0
				p[5], p[6], p[7] = byte(q>>16), byte(q>>8), byte(q)
			}
			from.send(to, p)
		})
		from = stranger
	}
	good := peer.write(to, b.Num(), 0xFFFFF0, 0xFFFF, hb.mr)
	at := 1
	batch("truncated", drops, len(good)-1, func() { peer.send(to, good[:at]); at++ })
	batch("wrong ICRC", func(s transport.Stats) uint64 { return s.DropICRC }, len(good)*8, func() {
		path := roce.NewPath(peer.addr.Addr().Unmap(), to, peer.addr.Port())
		for {
			p := append([]byte(nil), good...)
			for range 3 { // not the destination queue pair, which is looked up first
				p[8+rnd.IntN(len(p)-8)] ^= byte(1 + rnd.IntN(255))
			}
			// One in 65,536 passes as a packet with another identification.
			if _, ok := path.Solve(p); !ok {
				peer.send(to, p)
				return
			}
		}
	})
	batch("wrong source", func(s transport.Stats) uint64 { return s.DropSource }, 50, func() {
		stranger.send(to, stranger.write(to, b.Num(), 0xFFFFF0, 0xFFFF, hb.mr))
	})
	batch("wrong partition", func(s transport.Stats) uint64 { return s.DropPKey }, 50, func() {
		peer.send(to, peer.write(to, b.Num(), 0xFFFFF0, 0x8123, hb.mr))
	})
	batch("unknown queue pair", func(s transport.Stats) uint64 { return s.DropNoQP }, 50, func() {
		peer.send(to, peer.write(to, b.Num()^0x5A5A5A, 0xFFFFF0, 0xFFFF, hb.mr))
	})
	batch("another service", func(s transport.Stats) uint64 { return s.DropTransport }, 50, func() {
		peer.send(to, peer.write(to, uc.Num(), 0xFFFFF0, 0xFFFF, hb.mr))
	})
	batch("version", func(s transport.Stats) uint64 { return s.DropVersion }, 50, func() {
		p := peer.write(to, b.Num(), 0xFFFFF0, 0xFFFF, hb.mr)
		p[1] |= 1
		peer.seal(to, p)
		peer.send(to, p)
	})
	batch("congestion notification", func(s transport.Stats) uint64 { return s.CNPIgnored }, 50, func() {
		p := make([]byte, roce.BTHLen+16+roce.ICRCLen)
		roce.BTH(p).Put(roce.OpCNP, false, 0, 0xFFFF, uint32(b.Num()), false, 0)
		peer.seal(to, p)
		peer.send(to, p)
	})
	if st, ps := hb.dev.Stats(), hb.dev.PortStats(); received(&st) != ps.RxDgrams {
		t.Errorf("port_rcv_packets counts %d of %d datagrams", received(&st), ps.RxDgrams)
	}
	hb.dev.eng.Quiesce()
	for i, v := range hb.buf {
		if v != 0 {
			t.Fatalf("byte %d was written", i)
		}
	}
	for _, e := range []*end{b, ud, uc} {
		if st, err := e.Query(); err != nil || st.QPState != ib.QPStateRTS {
			t.Fatalf("state %v, %v", st.QPState, err)
		}
	}
	exercise(t, a, b, 5000)

	// A good packet from a port that was never seen is served (case 21).
	before := hb.dev.Stats().RcvdPackets
	peer.send(to, peer.write(to, b.Num(), uint32(nextPSN(b)), 0xFFFF, hb.mr))
	for hb.dev.Stats().RcvdPackets == before {
		hb.dev.Progress()
	}
	hb.dev.eng.Quiesce()
	for _, v := range hb.buf[:8] {
		if v != 0xEE {
			t.Fatalf("a good packet from another port was not served: %x", hb.buf[:8])
		}
	}
}

// nextPSN is what the responder expects: the exercise has six requests of RC
// with as many packets as 5000 bytes need, or one.
func nextPSN(*end) psn.PSN {
	return psn.PSN(0xFFFFF0).Add(5 + 1 + 5 + 5)
}
