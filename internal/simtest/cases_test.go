package simtest

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

const (
	micro  = int64(1000)
	milli  = 1000 * micro
	second = 1000 * milli
)

// Three clients WRITE to one server over a link that loses 2 % both ways:
// everybody makes progress, nobody runs out of retries, the memory is right.
func TestCase09_LossUnderSeveralClients(t *testing.T) {
	const clients, size, rounds = 3, 64 << 10, 40
	for _, mtu := range []ib.MTU{ib.MTU1024, ib.MTU4096} {
		r := newRig(t, 9, clients+1, simnet.Config{GRO: 0.5})
		r.net.SetDefault(simnet.Link{Delay: 5 * micro, Loss: 0.02})
		rng := rand.New(rand.NewPCG(9, 9))
		server := r.at[clients]
		p := usual
		p.mtu = mtu
		var qs []driver.QP
		for _, c := range r.at[:clients] {
			q, _ := r.pair(c, server, p)
			qs = append(qs, q)
		}
		for round := range rounds {
			for i, c := range r.at[:clients] {
				for j := range c.mem[:size] {
					c.mem[j] = byte(rng.Uint32())
				}
				c.send(qs[i], driver.SendWR{
					WRID: uint64(round), Opcode: ib.WRRDMAWrite, SGList: c.sge(0, size),
					RemoteAddr: server.mr.Addr() + uint64(i*size), RKey: server.mr.RKey(),
				})
			}
			for i, c := range r.at[:clients] {
				c.expect(10*second, ib.WCSuccess)
				if !bytes.Equal(c.mem[:size], server.mem[i*size:(i+1)*size]) {
					t.Fatalf("client %d, round %d: memory differs", i, round)
				}
			}
		}
		if r.net.Stats().Lost == 0 {
			t.Error("nothing was lost")
		}
	}
}

// pingPong sends messages to and fro and calls each at every turn.
func pingPong(r *rig, qa, qb driver.QP, rounds int, each func(i int)) {
	r.t.Helper()
	a, b := r.at[0], r.at[1]
	const size = 64
	for i := range rounds {
		a.recv(qa, driver.RecvWR{SGList: a.sge(size, size)})
		b.recv(qb, driver.RecvWR{SGList: b.sge(size, size)})
		a.mem[0], a.mem[1], a.mem[2] = byte(i), byte(i>>8), byte(i>>16)
		a.send(qa, driver.SendWR{Opcode: ib.WRSend, SGList: a.sge(0, size)})
		wait(r, b, ib.WCRecv)
		copy(b.mem[:size], b.mem[size:])
		b.send(qb, driver.SendWR{Opcode: ib.WRSend, SGList: b.sge(0, size)})
		wait(r, a, ib.WCRecv)
		if !bytes.Equal(a.mem[:size], a.mem[size:2*size]) {
			r.t.Fatalf("round %d: what came back is not what was sent", i)
		}
		if each != nil {
			each(i)
		}
	}
}

// wait takes completions until one of the kind comes.
func wait(r *rig, h *host, op ib.WCOpcode) {
	r.t.Helper()
	for {
		if wc := h.take(1, second)[0]; wc.Status != ib.WCSuccess {
			r.t.Fatalf("%+v", wc)
		} else if wc.Opcode == op {
			return
		}
	}
}

// A ping-pong never stalls: each round takes about the time of the way.
func TestCase17_PingPong(t *testing.T) {
	rounds := 50_000
	if testing.Short() || raceEnabled {
		rounds = 2_000
	}
	r := newRig(t, 17, 2, simnet.Config{})
	qa, qb := r.pair(r.at[0], r.at[1], usual)
	last := r.net.Now()
	pingPong(r, qa, qb, rounds, func(i int) {
		if now := r.net.Now(); now-last > 100*micro {
			t.Fatalf("round %d took %d ns of virtual time over a link of 2 us", i, now-last)
		} else {
			last = now
		}
	})
}

// The same over a network that loses: slower, but it goes on.
func TestCase17_PingPongLossy(t *testing.T) {
	r := newRig(t, 18, 2, simnet.Config{GRO: 1})
	r.net.SetDefault(simnet.Link{Delay: 2000, Loss: 0.05, Dup: 0.05, Reorder: 0.05})
	qa, qb := r.pair(r.at[0], r.at[1], usual)
	pingPong(r, qa, qb, 1000, nil)
}

// A process that does not run for a while is not a loss: its own timers must
// not count the time, and its peer's must be long enough for it.
func TestCase18_StarvedProcess(t *testing.T) {
	for _, c := range []struct {
		name           string
		timeout        uint8
		pause          int64
		client, server bool
	}{
		{"timeout 17, peer sleeps 2 s", 17, 2 * second, false, true},
		{"timeout 14, peer sleeps 0.3 s", 14, 300 * milli, false, true},
		{"timeout 14, requester sleeps 5 s", 14, 5 * second, true, false},
		{"timeout 8, both sleep 5 s", 8, 5 * second, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, 18, 2, simnet.Config{})
			p := usual
			p.timeout = c.timeout
			a, b := r.at[0], r.at[1]
			qa, _ := r.pair(a, b, p)
			if c.client {
				// Its work is under way when it falls asleep.
				r.net.After(micro, func() { r.net.Pause(a.port, c.pause) })
			}
			if c.server {
				r.net.Pause(b.port, c.pause)
			}
			for i := range 4 {
				a.send(qa, driver.SendWR{
					WRID: uint64(i), Opcode: ib.WRRDMAWrite, SGList: a.sge(0, 16<<10),
					RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
				})
			}
			a.expect(c.pause+10*second, ib.WCSuccess, ib.WCSuccess, ib.WCSuccess, ib.WCSuccess)
		})
	}
}

// A peer that loses power is noticed by the first request, within the time that
// the attributes say; an idle queue pair notices nothing.
func TestCase94_PeerVanishes(t *testing.T) {
	r := newRig(t, 94, 2, simnet.Config{})
	p := usual
	p.timeout, p.retry = 10, 3 // 4.2 ms
	a, b := r.at[0], r.at[1]
	qa, qb := r.pair(a, b, p)
	pingPong(r, qa, qb, 3, nil)
	a.polled()
	a.wcs = nil
	r.net.SetPartition(a.addr, b.addr, true)
	r.net.RunFor(60 * second)
	if got := a.polled(); len(got) != 0 {
		t.Fatalf("an idle queue pair completed %+v", got)
	}
	sent := 0
	r.net.Sniff(func(e *simnet.Event) { sent++ })
	from := r.net.Now()
	a.send(qa,
		driver.SendWR{WRID: 1, Opcode: ib.WRSend, SGList: a.sge(0, 64)},
		driver.SendWR{WRID: 2, Opcode: ib.WRSend, SGList: a.sge(0, 64)})
	got := a.expect(second, ib.WCRetryExcErr, ib.WCWRFlushErr)
	if got[0].WRID != 1 || got[1].WRID != 2 {
		t.Errorf("%+v", got)
	}
	const timeout = 4096 << 10
	if d := r.net.Now() - from; d < (3+1)*timeout || d > (3+1)*4*timeout {
		t.Errorf("the error came after %d ns; the timeout is %d ns, the retries 3", d, timeout)
	}
	if sent != 2*(3+1) {
		t.Errorf("%d packets were sent, want both requests %d times", sent, 3+1)
	}
	attr, err := qa.Query()
	r.must(err)
	if attr.QPState != ib.QPStateErr {
		t.Errorf("state %v", attr.QPState)
	}
}

// Packets that are still under way when their queue pair is destroyed are
// counted and dropped; destroying waits for nothing.
func TestCase121_DestroyWithPacketsUnderWay(t *testing.T) {
	r := newRig(t, 121, 2, simnet.Config{})
	a, b := r.at[0], r.at[1]
	qa, qb := r.pair(a, b, usual)
	hold := r.net.Filter(simnet.Every(func(e *simnet.Event) bool { return e.Op == roce.OpRCWriteMiddle }, simnet.Delay(30*second)))
	a.send(qa, driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: a.sge(0, 8<<10), RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()})
	r.net.RunFor(milli)
	from := r.net.Now()
	r.must(qa.Destroy())
	r.must(qb.Destroy())
	if r.net.Now() != from {
		t.Error("destroying took time")
	}
	hold()
	before := b.dev.Stats().DropNoQP
	r.net.RunFor(60 * second)
	if b.dev.Stats().DropNoQP == before {
		t.Error("the late packets were not counted")
	}
	for _, h := range r.at {
		if got := h.polled(); len(got) != 0 {
			t.Errorf("completions of destroyed queue pairs: %+v", got)
		}
		r.must(h.mr.Dereg())
		r.must(h.cq.Destroy())
		r.must(h.pd.Dealloc())
		if err := h.dev.Leaks(); err != nil {
			t.Error(err)
		}
	}
}
