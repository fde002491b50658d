package udp

import (
	"bytes"
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// member's queue pair numbers.
func qpnOf(slot, n int) ib.QPN { return ib.QPN(slot)<<slotShift | ib.QPN(n) }

// What is handed over keeps its place in order, the short in the message and the long in the
// pool; one GSO send for two members goes over the socket.
func TestHandedInOrder(t *testing.T) {
	s := newShared(t, freeLoopback(t), 64, true, 1, 2, 3)
	f := flow(s.addr, s.addr, s.index[2])
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 64})
	for i, size := range []int{8, 4096, 16, 2000, 4096, 64} {
		toQP(t, tx, f, qpnOf(3, 5), i, make([]byte, size))
	}
	s.ports[2].Send(tx)
	if st := s.ports[2].Stats(); st.TxPackets != 6 || st.TxAgain+st.TxErrors != 0 {
		t.Errorf("%+v", st)
	}
	next := uint32(0)
	s.receive(t, map[int]int{3: 6}, func(_ int, d *pkt.Datagram, seg []byte) {
		if k := uint32(psnOf(seg)); k != next || !d.Relayed || d.TTL != defaultTTL {
			t.Errorf("packet %d, want %d: %+v", k, next, d)
		}
		next++
	})
	if n := s.ports[1].Stats().Relayed; n != 0 {
		t.Errorf("the steward handed over %d", n)
	}

	tx.Reset()
	for i, to := range []int{3, 1} {
		toQP(t, tx, f, qpnOf(to, 5), i, make([]byte, 100))
	}
	if len(tx.Msgs) != 1 {
		t.Fatalf("%d sends", len(tx.Msgs))
	}
	s.ports[2].Send(tx)
	s.receive(t, map[int]int{1: 1, 3: 1}, func(slot int, _ *pkt.Datagram, seg []byte) {
		if k := psnOf(seg); (k == 0) != (slot == 3) {
			t.Errorf("slot %d got packet %d", slot, k)
		}
	})
	if n := s.h.left() - relayBufs; n > 0 { // those that the steward receives into
		t.Errorf("%d buffers are left", n)
	}
}

// Payload that is not there any more is a fault, and the packets beside it arrive.
func TestHandedFault(t *testing.T) {
	s := newShared(t, freeLoopback(t), 64, true, 1, 2, 3)
	f := flow(s.addr, s.addr, s.index[2])
	for _, size := range []int{1000, 4096} {
		m, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
		was := s.ports[2].Stats()
		toQP(t, tx, f, qpnOf(3, 5), 0, bytes.Repeat([]byte{1}, 500))
		toQP(t, tx, f, qpnOf(3, 5), 1, m[:size])
		toQP(t, tx, f, qpnOf(3, 5), 2, bytes.Repeat([]byte{1}, 4096))
		if err := unix.Munmap(m); err != nil {
			t.Fatal(err)
		}
		s.ports[2].Send(tx)
		st := s.ports[2].Stats()
		if st.TxFault-was.TxFault != 1 || st.TxPackets-was.TxPackets != 2 {
			t.Errorf("size %d: %+v", size, st)
		}
		s.receive(t, map[int]int{3: 2}, func(_ int, _ *pkt.Datagram, seg []byte) {
			if k := psnOf(seg); k != 0 && k != 2 {
				t.Errorf("packet %d", k)
			}
		})
	}
	if n := s.h.left(); n != 0 {
		t.Errorf("%d buffers are left", n)
	}
}

// To a member that does not read, what does not fit is lost and counted, and no buffer with it;
// where the pool has none left, or a member is not there, the socket has it.
func TestHandedTooMuch(t *testing.T) {
	s := newShared(t, freeLoopback(t), 16, true, 1, 2, 3)
	f := flow(s.addr, s.addr, s.index[2])
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
	send := func(slot, size int) {
		tx.Reset()
		toQP(t, tx, f, qpnOf(slot, 5), 0, make([]byte, size))
		s.ports[2].Send(tx)
	}
	p := s.ports[2]
	got := 0
	for ; p.Stats().TxAgain == 0; got++ {
		if got > 100_000 {
			t.Fatal("the mailbox is never full")
		}
		send(3, 100)
	}
	got-- // the last is lost
	left := s.h.left()
	for range 4 {
		send(3, 4096)
	}
	if st := p.Stats(); st.TxAgain != 5 || s.h.left() != left {
		t.Errorf("%d lost, %d buffers in use", st.TxAgain, s.h.left()-left)
	}
	s.receive(t, map[int]int{3: got}, func(int, *pkt.Datagram, []byte) {})
	for range 20 { // 16 in the pool
		send(3, 4096)
	}
	s.receive(t, map[int]int{3: 20}, func(_ int, d *pkt.Datagram, seg []byte) {
		if len(seg) != roce.BTHLen+4096+roce.ICRCLen {
			t.Errorf("%d bytes", len(seg))
		}
	})
	send(9, 4096)
	if st := p.Stats(); st.TxErrors != 0 {
		t.Errorf("%+v", st)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// A port that closes while a mailbox is full takes back what it has passed to it: nobody is told of it.
func TestClosedWithFullMailbox(t *testing.T) {
	s := newShared(t, freeLoopback(t), 64, true, 1, 2, 3)
	d := pkt.Datagram{Data: make([]byte, 4096), SegSize: 4096, Src: netip.AddrPortFrom(s.addr, 5), Dst: s.addr}
	for s.h.members[1].Send(3, make([]byte, 2000)) == nil { // until it is full
	}
	left := s.h.left()
	for range 3 {
		if got := s.ports[1].Forward(qpnOf(3, 5), &d); got != port.Handed {
			t.Fatal(got)
		}
	}
	s.ports[1].Flush()
	if s.h.left() != left+3 {
		t.Fatalf("%d buffers were passed", s.h.left()-left)
	}
	if err := s.ports[1].Close(); err != nil {
		t.Fatal(err)
	}
	if n := s.h.left(); n > left {
		t.Errorf("%d buffers are left", n)
	}
}

// From and to an address that the interface has lost nothing is handed over, as nothing could be sent.
func TestHandedNotWhenDropped(t *testing.T) {
	s := newShared(t, freeLoopback(t), 64, true, 1, 2, 3)
	other := freeLoopback(t)
	var index int
	for _, k := range []int{1, 2, 3} {
		i, err := s.ports[k].AddLocal(other)
		if err != nil {
			t.Fatal(err)
		}
		if k == 2 {
			index = i
		}
	}
	p := s.ports[2]
	p.DropLocal(s.addr)
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
	rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
	for _, f := range []*pkt.Flow{flow(s.addr, s.addr, s.index[2]), flow(s.addr, other, s.index[2])} {
		for _, size := range []int{64, 4096} {
			tx.Reset()
			toQP(t, tx, f, qpnOf(3, 5), 0, make([]byte, size))
			was := p.Stats()
			p.Send(tx)
			if st := p.Stats(); st.TxPackets != was.TxPackets || st.TxErrors != was.TxErrors+1 {
				t.Errorf("to %v, %d bytes: %+v", f.To, size, st)
			}
			if s.ports[3].Recv(&rx) != 0 {
				t.Errorf("to %v, %d bytes: it arrived", f.To, size)
			}
		}
	}
	// The other address, and the lost one when it is there again, work.
	toOther := flow(other, other, index)
	if i, err := p.AddLocal(s.addr); err != nil || i != s.index[2] {
		t.Fatalf("%d, %v", i, err)
	}
	for _, f := range []*pkt.Flow{toOther, flow(s.addr, s.addr, s.index[2])} {
		tx.Reset()
		toQP(t, tx, f, qpnOf(3, 5), 0, make([]byte, 4096))
		p.Send(tx)
		s.receive(t, map[int]int{3: 1}, func(_ int, d *pkt.Datagram, _ []byte) {
			if !d.Relayed || d.Dst != f.To.Addr() || d.Src != netip.AddrPortFrom(f.To.Addr(), roce.Port) {
				t.Errorf("%+v", d)
			}
		})
	}
	if n := s.ports[1].Stats().Relayed; n != 0 {
		t.Errorf("the steward handed over %d", n)
	}
}

// What is handed over comes from the source port of its flow, which the ICRC counts on, and carries the
// traffic class and hop limit that the network would have.
func TestHandedHeader(t *testing.T) {
	s := newShared(t, freeLoopback(t), 64, true, 1, 2, 3)
	src, udpPort, err := s.ports[2].Source(s.index[2], 77)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{64, 4096} {
		for source, from := range map[int]uint16{0: roce.Port, src: udpPort} {
			for hops, want := range map[uint8]uint8{0: 64, 1: 1, 255: 255} {
				f := flow(s.addr, s.addr, s.index[2])
				f.Path, f.Source, f.TClass, f.HopLimit = roce.NewPath(s.addr, s.addr, from), source, 0xE2, hops
				tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
				toQP(t, tx, f, qpnOf(3, 5), 0, make([]byte, size))
				s.ports[2].Send(tx)
				s.receive(t, map[int]int{3: 1}, func(_ int, d *pkt.Datagram, seg []byte) {
					if d.Src != netip.AddrPortFrom(s.addr, from) || d.TTL != want || d.TOS != 0xE2 || !d.Relayed || !f.Check(seg, 0) {
						t.Errorf("from port %d, %d hops: %+v", from, hops, d)
					}
				})
			}
		}
	}
}

// The steward, queue pair 1, groups and what a member sends to itself: only what is for another member alone
// is handed over.
func TestNotHanded(t *testing.T) {
	s := newShared(t, freeLoopback(t), 64, true, 1, 2, 3)
	p := s.ports[2]
	p.handing.Store(false)
	f := flow(s.addr, s.addr, s.index[2])
	for name, c := range map[string]struct {
		to     []ib.QPN
		handed bool
	}{
		"member":            {[]ib.QPN{qpnOf(3, 5)}, true},
		"steward":           {[]ib.QPN{qpnOf(1, 5)}, true},
		"two of a member":   {[]ib.QPN{qpnOf(3, 5), qpnOf(3, 6)}, true},
		"two members":       {[]ib.QPN{qpnOf(3, 5), qpnOf(1, 5)}, false},
		"management":        {[]ib.QPN{ib.QPNGSI}, false},
		"management behind": {[]ib.QPN{qpnOf(3, 5), ib.QPNGSI}, false},
		"a group's behind":  {[]ib.QPN{qpnOf(127, 5), ib.QPNMulticast}, false},
		"a group's":         {[]ib.QPN{ib.QPNMulticast}, false},
		"itself":            {[]ib.QPN{qpnOf(2, 5)}, false},
		"nobody":            {[]ib.QPN{qpnOf(9, 5)}, false},
		"nobody's number":   {[]ib.QPN{qpnOf(0, 5)}, false},
	} {
		s.h.members[127] = s.h.members[3] // whose numbers end in that of groups
		for _, size := range []int{64, 4096} {
			tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 64})
			for i, n := range c.to {
				toQP(t, tx, f, n, i, make([]byte, size))
			}
			snd := sender{p: p, b: tx, sc: p.getScratch()}
			got := snd.hand((*p.socks.Load())[s.index[2]], &tx.Msgs[0])
			if got != c.handed || len(tx.Msgs) != 1 {
				t.Errorf("%s, %d bytes: %v, want %v", name, size, got, c.handed)
			}
			if n := len(snd.sc.parcel.b); (n > 0) != c.handed {
				t.Errorf("%s: %d bytes to send", name, n)
			}
			p.takeBack(snd.sc.parcel.slot, snd.sc.parcel.b)
			if n := s.h.left(); n != 0 {
				t.Errorf("%s: %d buffers are left", name, n)
			}
		}
		delete(s.h.members, 127)
	}
}

// Members send, lose addresses and get them again, become the steward and close, all at once: every
// datagram arrives whole or not at all, and no buffer is left.
func TestHandedWhileAllChanges(t *testing.T) {
	s := newShared(t, freeLoopback(t), 24, true, 1, 2, 3)
	var work sync.WaitGroup
	for _, k := range []int{1, 2} {
		for range 2 {
			work.Add(1)
			go func() {
				defer work.Done()
				f := flow(s.addr, s.addr, s.index[k])
				tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 4})
				for n := range 400 {
					tx.Reset()
					for i, size := range []int{16, 4096, 2000, 4096} {
						toQP(t, tx, f, qpnOf(3-n%3, 5), i, bytes.Repeat([]byte{byte(n)}, size))
					}
					s.ports[k].Send(tx)
				}
			}()
		}
	}
	work.Add(1)
	go func() {
		defer work.Done()
		for n := range 60 {
			p := s.ports[2+n%2]
			p.DropLocal(s.addr)
			if _, err := p.AddLocal(s.addr); err != nil {
				t.Error(err)
			}
			s.h.appoint(1 + n%3)
			for _, p := range s.ports {
				p.Look()
			}
		}
		_ = s.ports[1].Close()
	}()
	done := make(chan struct{})
	var read sync.WaitGroup
	for _, p := range s.ports {
		read.Add(1)
		go func() {
			defer read.Done()
			rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, turn)}
			for last := false; ; {
				n := p.Recv(&rx)
				for _, d := range rx.Dgrams {
					for b := d.Data; len(b) > 0; b = b[min(d.SegSize, len(b)):] {
						seg := b[:min(d.SegSize, len(b))]
						pay := seg[roce.BTHLen : len(seg)-roce.ICRCLen]
						if len(pay) < 16 || bytes.Count(pay, pay[:1]) != len(pay) {
							t.Errorf("%d bytes, not whole", len(seg))
						}
					}
				}
				if n == 0 && last {
					return
				}
				select {
				case <-done:
					last = true
				default:
				}
			}
		}()
	}
	work.Wait()
	close(done)
	read.Wait()
	for _, p := range s.ports {
		_ = p.Close()
	}
	// What one that has closed has not read is free when it leaves the group.
	for slot, p := range s.ports {
		g := s.h.members[slot]
		b := make([]byte, mailMax)
		for m := p.share.rest; ; {
			for len(m) >= recordLen {
				used := recordLen
				if m[0] == kindPool {
					g.PoolPut(int(order.Uint32(m[16:])))
				} else {
					used += (int(order.Uint32(m[4:])) + 7) &^ 7
				}
				m = m[used:]
			}
			n, err := g.Recv(b)
			if err != nil {
				break
			}
			m = b[:n]
		}
	}
	if n := s.h.left(); n != 0 {
		t.Errorf("%d buffers are left", n)
	}
}

// One send for several members, and for one more than a message holds: each gets its own, in order.
func TestHandedToSeveral(t *testing.T) {
	s := newShared(t, freeLoopback(t), 64, true, 1, 2, 3)
	f := flow(s.addr, s.addr, s.index[2])
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
	body := make([]byte, 1900)
	for i := range 60 {
		to, size := 3, 1900
		if i >= 40 { // by turns
			to, size = 3-i%2*2, 100+i%4/2*2500
		}
		toQP(t, tx, f, qpnOf(to, 5), i, append(body, body...)[:size])
	}
	s.ports[2].Send(tx)
	if st := s.ports[2].Stats(); st.TxPackets != 60 || st.TxAgain+st.TxErrors != 0 {
		t.Errorf("%+v", st)
	}
	last := map[int]int{1: -1, 3: -1}
	s.receive(t, map[int]int{1: 10, 3: 50}, func(slot int, d *pkt.Datagram, seg []byte) {
		if k := psnOf(seg); k <= last[slot] || !d.Relayed || (k >= 40 && k%2 == 1) != (slot == 1) {
			t.Errorf("slot %d: packet %d after %d", slot, k, last[slot])
		} else {
			last[slot] = k
		}
	})
	if n := s.h.left() - relayBufs; n > 0 {
		t.Errorf("%d buffers are left", n)
	}
}

// A member that is gone when the message is sent: it is an error, and no buffer is lost. A record for an
// address that the reader has not does no harm to those behind it.
func TestHandedToNobody(t *testing.T) {
	s := newShared(t, freeLoopback(t), 64, true, 1, 2, 3)
	f := flow(s.addr, s.addr, s.index[2])
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
	for i := range 3 {
		toQP(t, tx, f, qpnOf(3, 5), i, make([]byte, 4096*(i%2)))
	}
	p := s.ports[2]
	snd := sender{p: p, b: tx, sc: p.getScratch()}
	fill := func() {
		for i := range tx.Msgs {
			if !snd.hand((*p.socks.Load())[s.index[2]], &tx.Msgs[i]) {
				t.Fatal("not handed over")
			}
		}
	}
	fill()
	g := s.h.members[3]
	delete(s.h.members, 3)
	snd.deliver()
	if n := s.h.left(); n != 0 || snd.sent.errors != 3 || snd.sent.packets != 0 || len(snd.sc.parcel.b) != 0 {
		t.Errorf("%d buffers are left, %+v", n, snd.sent)
	}
	s.h.members[3] = g
	fill()
	for _, at := range []int{40 + 15, recordLen + 16 + 40 + 15} { // the destinations of the first two
		snd.sc.parcel.b[at] ^= 1
	}
	snd.deliver()
	s.receive(t, map[int]int{3: 1}, func(_ int, _ *pkt.Datagram, seg []byte) {
		if k := psnOf(seg); k != 2 {
			t.Errorf("packet %d", k)
		}
	})
	if n := s.ports[3].Stats().RxGarbage; n != 2 || s.h.left() > relayBufs {
		t.Errorf("%d records of no sense, %d buffers are left", n, s.h.left())
	}
}
