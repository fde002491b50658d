package udp

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Batches of all shapes arrive whole and in order, each packet with an ICRC
// that holds for the identification with which it left.
func TestExchange(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			a, b := open(t, v.cfg), open(t, v.cfg)
			aAddr, aLocal := addLoopback(t, a)
			bAddr, _ := addLoopback(t, b)
			exchange(t, a, b, aAddr, bAddr, aLocal)
			if st := a.Stats(); st.TxErrors+st.TxAgain+st.TxFault+st.GSOOff != 0 {
				t.Errorf("sender: %+v", st)
			}
		})
	}
}

func TestExchangeIPv6(t *testing.T) {
	a := netip.IPv6Loopback()
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			// There is only one loopback address: the port talks to itself.
			p := open(t, v.cfg)
			local, err := p.AddLocal(a)
			if err != nil {
				t.Skip(err)
			}
			exchange(t, p, p, a, a, local)
		})
	}
}

func exchange(t *testing.T, from, to *Port, fromAddr, toAddr netip.Addr, local int) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	f := flow(fromAddr, toAddr, local)
	f.TClass = 0x68
	f.HopLimit = 9
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: from.Caps().MaxSegs})
	var want [][]byte
	for range 8 { // rounds
		want = want[:0]
		for size := 0; size < 100_000 && len(want) < 400; {
			payload := make([]byte, []int{0, 1, 8, 256, 257, 1024, 4096}[rnd.IntN(7)])
			for range 1 + rnd.IntN(12) { // runs of one size make GSO sends
				if tx.Full(1) {
					break
				}
				for i := range payload {
					payload[i] = byte(rnd.Uint32())
				}
				p := clone(payload)
				put(t, tx, f, len(want), p)
				want = append(want, p)
				size += len(p) + 16
			}
			if tx.Full(1) {
				break
			}
		}
		from.Send(tx)
		tx.Reset()
		next := 0
		collect(t, to, len(want), func(d *pkt.Datagram, k int, packet []byte) {
			if got := psnOf(packet); got != next {
				t.Fatalf("packet %d came as number %d", got, next)
			}
			w := want[next]
			next++
			if got := packet[roce.BTHLen:]; !bytes.HasPrefix(got, w) || len(got) != (len(w)+3)&^3+roce.ICRCLen {
				t.Fatalf("packet %d: payload differs", next-1)
			}
			id, ok := f.Solve(packet)
			if !ok {
				t.Fatalf("packet %d: no identification solves the ICRC", next-1)
			}
			// What arrives in one piece was one GSO send: segment k left with
			// identification k. Without GRO the pieces do not tell.
			if len(d.Data) > d.SegSize && fromAddr.Is4() {
				if int(id) != k || !f.Check(packet, uint16(k)) {
					t.Fatalf("packet %d: identification %d, segment %d", next-1, id, k)
				}
			}
			if int(id) >= 128 {
				t.Fatalf("packet %d: identification %d", next-1, id)
			}
			got := pkt.Datagram{Src: d.Src, Dst: d.Dst, Local: d.Local, TOS: d.TOS, TTL: d.TTL}
			wantD := pkt.Datagram{Src: netip.AddrPortFrom(fromAddr, roce.Port), Dst: toAddr, TOS: 0x68, TTL: 9}
			if fmt.Sprint(got) != fmt.Sprint(wantD) {
				t.Fatalf("datagram %+v, want %+v", got, wantD)
			}
		})
	}
	st := from.Stats()
	if st.TxErrors+st.TxAgain+st.TxFault+st.GSOOff != 0 {
		t.Errorf("sender: %+v", st)
	}
	if from.Caps().MaxSegs == 1 && st.TxMsgs != st.TxPackets {
		t.Errorf("%d messages for %d packets without offload", st.TxMsgs, st.TxPackets)
	}
}

func clone(b []byte) []byte { return append([]byte(nil), b...) }

// A raw socket sees what the ICRCs count on: DF and identification 0. The
// loopback hands a GSO send over whole, so its segments are still to be
// numbered from there.
func TestIdentifications(t *testing.T) {
	raw, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)
	if err != nil {
		t.Skip("raw socket: ", err)
	}
	defer func() { _ = unix.Close(raw) }()
	a := open(t, Config{})
	from, local := addLoopback(t, a)
	to := netip.AddrFrom4([4]byte{127, 250, byte(rand.IntN(256)), byte(1 + rand.IntN(250))})
	if err := unix.Bind(raw, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
		t.Fatal(err)
	}
	f := flow(from, to, local)
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: a.Caps().MaxSegs})
	payload := make([]byte, 1000)
	for i := range 5 {
		put(t, tx, f, i, payload)
	}
	put(t, tx, f, 5, payload[:500]) // joins as the short last segment
	put(t, tx, f, 6, payload)       // a message of its own
	a.Send(tx)
	const size = 1000 + roce.BTHLen + roce.ICRCLen
	next := 0
	buf := make([]byte, 16<<10)
	for next < 7 {
		n, _, err := unix.Recvfrom(raw, buf, 0)
		if err != nil {
			t.Fatalf("after %d packets: %v", next, err)
		}
		ip := buf[:n]
		if from4 := from.As4(); !bytes.Equal(ip[12:16], from4[:]) {
			continue // came before the socket was bound
		}
		if id := int(ip[4])<<8 | int(ip[5]); id != 0 || ip[6] != 0x40 || ip[7] != 0 {
			t.Errorf("identification %d, flags and fragment offset %x; want 0 and DF only", id, ip[6:8])
		}
		if ip[26]|ip[27] == 0 {
			t.Error("no UDP checksum")
		}
		for k, b := 0, ip[28:]; len(b) > 0; k++ {
			packet := b[:min(size, len(b))]
			b = b[len(packet):]
			if psnOf(packet) != next || !f.Check(packet, uint16(k)) {
				t.Errorf("packet %d, segment %d: number %d or ICRC wrong", next, k, psnOf(packet))
			}
			next++
		}
	}
}

// Several local addresses: each is heard, none starves, and sends leave from
// the address of the flow.
func TestManyAddresses(t *testing.T) {
	a, b := open(t, Config{}), open(t, Config{})
	from, local := addLoopback(t, a)
	var to [3]netip.Addr
	for i := range to {
		var k int
		if to[i], k = addLoopback(t, b); k != i {
			t.Fatalf("address %d has index %d", i, k)
		}
	}
	if k, err := b.AddLocal(to[1]); k != 1 || err != nil {
		t.Fatalf("the same address again: %d, %v", k, err)
	}
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
	var flows [3]*pkt.Flow
	for i := range to {
		flows[i] = flow(from, to[i], local)
	}
	payload := make([]byte, 64)
	const each = 20
	for n := range each {
		for _, f := range flows {
			put(t, tx, f, n, payload)
		}
	}
	a.Send(tx)
	var got [3]int
	collect(t, b, 3*each, func(d *pkt.Datagram, _ int, packet []byte) {
		if d.Dst != to[d.Local] || psnOf(packet) != got[d.Local] {
			t.Fatalf("number %d to %v with index %d", psnOf(packet), d.Dst, d.Local)
		}
		got[d.Local]++
	})

	// A socket that always has more leaves room for the others.
	tx.Reset()
	for range 30 {
		put(t, tx, flows[0], 0, payload)
	}
	put(t, tx, flows[2], 0, payload)
	a.Send(tx)
	rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, 4)}
	for turns := 0; ; turns++ {
		if turns == 5 {
			t.Fatal("one address starves another")
		}
		b.Recv(&rx)
		if len(rx.Dgrams) > 4 {
			t.Fatalf("%d datagrams in a batch of 4", len(rx.Dgrams))
		}
		if hasLocal(rx.Dgrams, 2) {
			break
		}
	}

	// Back, from each of the addresses.
	tx.Reset()
	for i := range to {
		put(t, tx, flow(to[i], from, i), i, payload)
	}
	b.Send(tx)
	n := 0
	collect(t, a, 3, func(d *pkt.Datagram, _ int, packet []byte) {
		if d.Src != netip.AddrPortFrom(to[n], roce.Port) {
			t.Errorf("packet %d is from %v", n, d.Src)
		}
		n++
	})
}

func hasLocal(ds []pkt.Datagram, local int) bool {
	for i := range ds {
		if ds[i].Local == local {
			return true
		}
	}
	return false
}

// A datagram that does not fit the buffer is counted and dropped, the next one
// arrives.
func TestTruncation(t *testing.T) {
	for _, noMMsg := range []bool{false, true} {
		t.Run(fmt.Sprintf("NoMMsg=%v", noMMsg), func(t *testing.T) {
			a := open(t, Config{})
			b := open(t, Config{bufBytes: 512, NoGRO: true, NoMMsg: noMMsg})
			from, local := addLoopback(t, a)
			to, _ := addLoopback(t, b)
			f := flow(from, to, local)
			tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
			put(t, tx, f, 1, make([]byte, 512)) // 528 bytes
			put(t, tx, f, 2, make([]byte, 496)) // just fits
			a.Send(tx)
			collect(t, b, 1, func(_ *pkt.Datagram, _ int, packet []byte) {
				if n := psnOf(packet); n != 2 || len(packet) != 512 {
					t.Errorf("packet %d of %d bytes", n, len(packet))
				}
			})
			if st := b.Stats(); st.RxTrunc != 1 || st.RxDgrams != 2 {
				t.Errorf("%+v", st)
			}
		})
	}
}

// What cannot be sent is counted, and what is sent with it arrives.
func TestSendErrors(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			a, b := open(t, v.cfg), open(t, v.cfg)
			from, local := addLoopback(t, a)
			to, _ := addLoopback(t, b)
			good := flow(from, to, local)
			noSocket := flow(from, to, 7)
			negative := flow(from, to, -1)
			family := flow(from, netip.IPv6Loopback(), local)
			unreachable := flow(from, netip.MustParseAddr("255.255.255.255"), local) // EACCES
			silent := flow(from, netip.MustParseAddr("127.240.0.1"), local)          // ICMP port unreachable
			tx := pkt.NewTx(pkt.TxCaps{MaxSegs: a.Caps().MaxSegs})
			small, big := make([]byte, 100), make([]byte, 3000)
			n := 0
			for _, f := range []*pkt.Flow{good, noSocket, good, family, good, silent, good, unreachable, negative, good} {
				if f == good {
					put(t, tx, f, n, small)
					n++
					continue
				}
				put(t, tx, f, 99, big)
				if a.Caps().MaxSegs > 1 {
					put(t, tx, f, 99, big)
				}
			}
			a.Send(tx)
			next := 0
			collect(t, b, n, func(_ *pkt.Datagram, _ int, packet []byte) {
				if psnOf(packet) != next {
					t.Errorf("packet %d as number %d", psnOf(packet), next)
				}
				next++
			})
			st := a.Stats()
			if st.TxMsgs != uint64(n)+1 || st.TxErrors < 4 || st.GSOOff != 0 {
				t.Errorf("%+v", st)
			}
			if a.Caps().MaxSegs != open(t, v.cfg).Caps().MaxSegs {
				t.Error("a wrong address switched segmentation off")
			}
		})
	}
}

// Payload that was unmapped is a fault of that message alone.
func TestSendFault(t *testing.T) {
	a, b := open(t, Config{}), open(t, Config{})
	from, local := addLoopback(t, a)
	to, _ := addLoopback(t, b)
	f := flow(from, to, local)
	gone, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: a.Caps().MaxSegs})
	put(t, tx, f, 0, make([]byte, 300))
	put(t, tx, f, 1, gone)
	put(t, tx, f, 2, make([]byte, 3000)) // may join number 1, which is lost with it
	put(t, tx, f, 3, make([]byte, 4000))
	if err := unix.Munmap(gone); err != nil {
		t.Fatal(err)
	}
	a.Send(tx)
	var got []int
	last := false
	for !last {
		collect(t, b, 1, func(_ *pkt.Datagram, _ int, packet []byte) {
			got = append(got, psnOf(packet))
			last = psnOf(packet) == 3
		})
	}
	if got[0] != 0 || got[len(got)-1] != 3 || len(got) > 3 {
		t.Errorf("received %v", got)
	}
	if st := a.Stats(); st.TxFault != 1 || st.TxErrors != 0 {
		t.Errorf("%+v", st)
	}
}

// When segmentation fails the port goes without: batches that were built for
// it lose what cannot be sent alone, later ones arrive whole.
func TestOffloadSwitchedOff(t *testing.T) {
	a, b := open(t, Config{}), open(t, Config{})
	if a.Caps().MaxSegs < 8 {
		t.Skip("no segmentation offload")
	}
	from, local := addLoopback(t, a)
	to, _ := addLoopback(t, b)
	f := flow(from, to, local)
	limit := a.Caps().MaxSegs
	// More segments than the kernel takes: EINVAL, and a lone segment goes.
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 2 * limit})
	for i := range limit + 1 {
		put(t, tx, f, i, []byte{1, 2, 3, 4})
	}
	if len(tx.Msgs) != 1 {
		t.Fatalf("%d messages", len(tx.Msgs))
	}
	a.maxSegs.Store(int32(2 * limit)) // as if the probe had found so
	a.Send(tx)
	if st := a.Stats(); st.GSOOff != 1 || st.TxPackets != 1 {
		t.Errorf("%+v", st)
	}
	if a.Caps().MaxSegs != 1 || a.Caps().NeedsProbe || tx.Caps.MaxSegs != 1 {
		t.Errorf("port %+v, batch %+v", a.Caps(), tx.Caps)
	}
	check := func(want ...int) {
		t.Helper()
		var got []int
		collect(t, b, len(want), func(_ *pkt.Datagram, _ int, packet []byte) {
			got = append(got, psnOf(packet))
			if !f.Check(packet, 0) {
				t.Errorf("packet %d: wrong ICRC", psnOf(packet))
			}
		})
		if d := cmp.Diff(want, got); d != "" {
			t.Error(d)
		}
	}
	check(0)
	// Another batch that was under construction meanwhile.
	old := pkt.NewTx(pkt.TxCaps{MaxSegs: limit})
	put(t, old, f, 10, make([]byte, 400))
	put(t, old, f, 11, make([]byte, 400))
	put(t, old, f, 12, make([]byte, 800))
	a.Send(old)
	check(10, 12)
	tx.Reset()
	for i := range 3 {
		put(t, tx, f, i, make([]byte, 500))
	}
	a.Send(tx)
	check(0, 1, 2)
	if st := a.Stats(); st.GSOOff != 1 {
		t.Errorf("%+v", st)
	}
}

// Over IPv6 no identification stands in the way: all segments are sent alone.
func TestOffloadSwitchedOffIPv6(t *testing.T) {
	p := open(t, Config{NoGRO: true})
	self := netip.IPv6Loopback()
	local, err := p.AddLocal(self)
	if err != nil {
		t.Skip(err)
	}
	f := flow(self, self, local)
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 64})
	for i := range 20 {
		put(t, tx, f, i, bytes.Repeat([]byte{byte(i)}, 600))
	}
	p.maxSegs.Store(1)
	p.Send(tx)
	next := 0
	collect(t, p, 20, func(_ *pkt.Datagram, _ int, packet []byte) {
		if psnOf(packet) != next || packet[roce.BTHLen] != byte(next) || !f.Check(packet, 0) {
			t.Fatalf("packet %d as number %d", psnOf(packet), next)
		}
		next++
	})
}

func TestCaps(t *testing.T) {
	for _, v := range variants {
		p := open(t, v.cfg)
		c := p.Caps()
		want := port.Caps{MaxSegs: c.MaxSegs, RecvBuf: c.RecvBuf, NeedsProbe: c.MaxSegs > 1, Checksummed: true}
		if c != want {
			t.Errorf("%s: %+v", v.name, c)
		}
		if v.cfg.NoGSO && c.MaxSegs != 1 || v.cfg.MaxSegs > 0 && c.MaxSegs > v.cfg.MaxSegs {
			t.Errorf("%s: %d segments", v.name, c.MaxSegs)
		}
		_, i := addLoopback(t, p)
		n, err := unix.GetsockoptInt((*p.socks.Load())[i].fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
		if err != nil || n != c.RecvBuf {
			t.Errorf("%s: socket has %d bytes (%v), the port says %d", v.name, n, err, c.RecvBuf)
		}
	}
}

// Several goroutines send at once; the packets of each arrive in order.
func TestConcurrentSend(t *testing.T) {
	a, b := open(t, Config{}), open(t, Config{})
	from, local := addLoopback(t, a)
	const senders, rounds, each = 4, 20, 10
	for range senders {
		addLoopback(t, b) // one address for each, so that they can be told apart
	}
	sent := make(chan struct{}, senders)
	for i, s := range *b.socks.Load() {
		go func() {
			f := flow(from, s.addr, local)
			tx := pkt.NewTx(pkt.TxCaps{MaxSegs: a.Caps().MaxSegs})
			payload := bytes.Repeat([]byte{byte(i)}, 300)
			for r := range rounds {
				for k := range each {
					put(t, tx, f, r*each+k, payload)
				}
				a.Send(tx)
				tx.Reset()
			}
			sent <- struct{}{}
		}()
	}
	for range senders {
		<-sent
	}
	var next [senders]int
	collect(t, b, senders*rounds*each, func(d *pkt.Datagram, k int, packet []byte) {
		if psnOf(packet) != next[d.Local] || packet[roce.BTHLen] != byte(d.Local) {
			t.Fatalf("address %d: packet %d as number %d", d.Local, psnOf(packet), next[d.Local])
		}
		next[d.Local]++
		if path := roce.NewPath(from, d.Dst, roce.Port); !path.Check(packet, uint16(k)) {
			t.Fatalf("address %d: packet %d as segment %d: wrong ICRC", d.Local, psnOf(packet), k)
		}
	})
}
