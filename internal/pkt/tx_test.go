package pkt

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

func flow4(maxSegs int) *Flow {
	return &Flow{Path: roce.NewPath(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), 50000), MaxSegs: maxSegs}
}

func flow6(maxSegs int) *Flow {
	return &Flow{Path: roce.NewPath(netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fe80::2"), 50001), MaxSegs: maxSegs}
}

// packet is what a test puts in.
type packet struct {
	flow   *Flow
	hdr    []byte
	pieces [][]byte
}

func (p *packet) payload() []byte { return bytes.Join(p.pieces, nil) }

// newPacket makes a packet with a header of hdrLen bytes, numbered n.
func newPacket(f *Flow, n, hdrLen int, pieces ...[]byte) *packet {
	h := bytes.Repeat([]byte{byte(n)}, hdrLen)
	total := len(bytes.Join(pieces, nil))
	roce.BTH(h).Put(roce.Opcode(4), false, (-total)&3, 0xFFFF, uint32(n), false, psn.PSN(n))
	return &packet{f, h, pieces}
}

// add puts the packet into the batch.
func (p *packet) add(t testing.TB, tx *Tx) {
	t.Helper()
	p.begin(t, tx)
	tx.End()
}

// begin does all but End.
func (p *packet) begin(t testing.TB, tx *Tx) {
	t.Helper()
	copy(tx.Begin(p.flow, len(p.hdr), len(p.payload())), p.hdr)
	for _, b := range p.pieces {
		if err := tx.Payload(b); err != nil {
			t.Fatal(err)
		}
	}
}

type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// check takes the batch apart as the kernel does and wants exactly the packets.
func check(t fataler, tx *Tx, want []*packet) {
	t.Helper()
	if tx.Packets != len(want) || tx.Empty() != (len(want) == 0) {
		t.Fatalf("%d packets, want %d", tx.Packets, len(want))
	}
	frag := 0
	for i := range tx.Msgs {
		m := &tx.Msgs[i]
		if m.First != frag || m.Count < 1 || m.Count > 1024 {
			t.Fatalf("message %d: fragments %d + %d, want them to begin at %d", i, m.First, m.Count, frag)
		}
		frag += m.Count
		b := bytes.Join(tx.Frags[m.First:frag], nil)
		limit := tx.Caps.MaxSegs
		if m.Flow.MaxSegs > 0 {
			limit = min(limit, m.Flow.MaxSegs)
		}
		if len(b) != m.Bytes || m.Bytes > MaxMsgBytes || m.Segs > limit || m.Segs != (m.Bytes+m.SegSize-1)/m.SegSize {
			t.Fatalf("message %d: %d bytes in %d segments of %d, has %d", i, m.Bytes, m.Segs, m.SegSize, len(b))
		}
		for k := range m.Segs {
			if len(want) == 0 {
				t.Fatalf("too many packets")
			}
			p := want[0]
			want = want[1:]
			seg := b[:min(m.SegSize, len(b))]
			b = b[len(seg):]
			if m.Flow != p.flow {
				t.Fatalf("message %d, segment %d: other flow", i, k)
			}
			pay := p.payload()
			pad := make([]byte, (-len(pay))&3)
			if !bytes.Equal(seg[:len(seg)-roce.ICRCLen], bytes.Join([][]byte{p.hdr, pay, pad}, nil)) {
				t.Fatalf("message %d, segment %d: other bytes", i, k)
			}
			if !m.Flow.Check(seg, uint16(k)) {
				t.Fatalf("message %d, segment %d of %d: bad ICRC", i, k, m.Segs)
			}
		}
	}
	if len(want) > 0 || frag != len(tx.Frags) {
		t.Fatalf("%d packets and %d fragments are left over", len(want), len(tx.Frags)-frag)
	}
}

// What joins one GSO send and what does not.
func TestJoining(t *testing.T) {
	f, g, two, one, six := flow4(0), flow4(0), flow4(2), flow4(1), flow6(0)
	big, small, odd := make([]byte, 1024), make([]byte, 100), make([]byte, 1021)
	p := func(f *Flow, hdr int, b []byte) *packet { return newPacket(f, 1, hdr, b) }
	for _, c := range []struct {
		name string
		segs []int // segments of each message
		in   []*packet
	}{
		{"one", []int{1}, []*packet{p(f, 12, big)}},
		{"equal ones", []int{3}, []*packet{p(f, 12, big), p(f, 12, big), p(f, 12, big)}},
		{"equal small ones", []int{3}, []*packet{p(f, 12, small), p(f, 12, small), p(f, 12, small)}},
		{"no payload", []int{2}, []*packet{p(six, 16, nil), p(six, 16, nil)}},
		{"padded to the same size", []int{2}, []*packet{p(f, 12, odd), p(f, 12, big)}},
		{"header for payload", []int{2}, []*packet{p(f, 28, big[:1008]), p(f, 12, big)}},
		{"a shorter one ends it", []int{2, 2}, []*packet{p(f, 12, big), p(f, 12, small), p(f, 12, big), p(f, 12, big)}},
		{"also before a shorter one", []int{2, 1}, []*packet{p(f, 12, big), p(f, 12, small), p(f, 12, small[:4])}},
		{"a longer one does not join", []int{1, 2}, []*packet{p(f, 12, small), p(f, 12, big), p(f, 12, big)}},
		{"FIRST is longer than MIDDLE", []int{2, 2}, []*packet{p(f, 28, big), p(f, 12, big), p(f, 12, big), p(f, 12, small)}},
		{"other flow", []int{1, 1, 1}, []*packet{p(f, 12, big), p(g, 12, big), p(f, 12, big)}},
		{"two at most", []int{2, 2, 1}, []*packet{p(two, 12, big), p(two, 12, big), p(two, 12, big), p(two, 12, big), p(two, 12, big)}},
		{"no offload", []int{1, 1}, []*packet{p(one, 12, big), p(one, 12, big)}},
	} {
		tx := NewTx(TxCaps{MaxSegs: 64})
		for _, p := range c.in {
			p.add(t, tx)
		}
		check(t, tx, c.in)
		var got []int
		for _, m := range tx.Msgs {
			got = append(got, m.Segs)
		}
		if fmt.Sprint(got) != fmt.Sprint(c.segs) {
			t.Errorf("%s: messages of %v segments, want %v", c.name, got, c.segs)
		}
	}
	// The port's limit holds for flows that have none, and for those that have more.
	tx := NewTx(TxCaps{MaxSegs: 3})
	for range 4 {
		p(f, 12, big).add(t, tx)
	}
	if len(tx.Msgs) != 2 || tx.Msgs[0].Segs != 3 {
		t.Errorf("%d messages", len(tx.Msgs))
	}
	// So does the size of a datagram before segmentation.
	tx = NewTx(TxCaps{MaxSegs: 64})
	mtu := make([]byte, 4096)
	for range 16 {
		p(f, 12, mtu).add(t, tx)
	}
	if len(tx.Msgs) != 2 || tx.Msgs[0].Segs != MaxMsgBytes/4112 {
		t.Errorf("%d messages, %d segments", len(tx.Msgs), tx.Msgs[0].Segs)
	}
}

// Neighbours in the arena share a fragment.
func TestFragments(t *testing.T) {
	f := flow4(0)
	tx := NewTx(TxCaps{MaxSegs: 64})
	big := make([]byte, 1024)
	for i := range 3 {
		newPacket(f, i, 12, big[:500], big[500:]).add(t, tx)
	}
	// header, 2 pieces, trailer and header, 2 pieces, trailer and header, 2 pieces, trailer
	if n := len(tx.Frags); n != 10 {
		t.Errorf("%d fragments", n)
	}
	tx.Reset()
	for i := range 30 {
		newPacket(f, i, 12, big[:50], big[:50]).add(t, tx)
	}
	if n := len(tx.Frags); n != 1 {
		t.Errorf("%d fragments for small packets", n)
	}
	newPacket(flow4(0), 1, 12, big[:100]).add(t, tx)
	if n := len(tx.Frags); n != 2 {
		t.Errorf("two messages share a fragment: %d", n)
	}
}

func TestResetLetsGo(t *testing.T) {
	tx := NewTx(TxCaps{MaxSegs: 64})
	newPacket(flow4(0), 1, 12, make([]byte, 1024)).add(t, tx)
	tx.Reset()
	for i, b := range tx.Frags[:cap(tx.Frags)] {
		if b != nil {
			t.Fatalf("fragment %d is kept", i)
		}
	}
	check(t, tx, nil)
	tx.Abort() // nothing is under construction
	check(t, tx, nil)
}

// Giving up a packet takes nothing away from those after it.
func TestAbortLeavesNoTrace(t *testing.T) {
	f := flow4(0)
	tx := NewTx(TxCaps{MaxSegs: 64})
	big, small := make([]byte, 1024), make([]byte, 8)
	want := []*packet{newPacket(f, 1, 12, big), newPacket(f, 2, 12, big)}
	want[0].add(t, tx)
	used, frags := tx.used, len(tx.Frags)
	for _, b := range [][]byte{small, big} { // a shorter one would have ended the message
		newPacket(f, 9, 28, b).begin(t, tx)
		tx.Abort()
		newPacket(f, 9, 12, b).begin(t, tx)
		tx.Abort()
	}
	if tx.used != used || len(tx.Frags) != frags {
		t.Errorf("%d bytes and %d fragments are left", tx.used-used, len(tx.Frags)-frags)
	}
	want[1].add(t, tx)
	check(t, tx, want)
	if len(tx.Msgs) != 1 {
		t.Errorf("%d messages", len(tx.Msgs))
	}
}

func TestWrongLengthIsABug(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("End takes less payload than was announced")
		}
	}()
	tx := NewTx(TxCaps{MaxSegs: 64})
	tx.Begin(flow4(0), 12, 8)
	tx.End()
}

// Random packets, some given up, in random pieces: what comes out are the
// others, with right ICRCs, whatever joined; and Full keeps all within bounds.
func TestTxModel(t *testing.T) {
	memory := make([]byte, 8192)
	for i := range memory {
		memory[i] = byte(i * 7)
	}
	rapid.Check(t, func(t *rapid.T) {
		tx := NewTx(TxCaps{MaxSegs: rapid.SampledFrom([]int{1, 2, 64, 128}).Draw(t, "MaxSegs")})
		flows := []*Flow{flow4(0), flow6(0), flow4(2)}
		small := rapid.Bool().Draw(t, "small")
		for range rapid.IntRange(1, 2).Draw(t, "batches") {
			var want []*packet
			for n := range rapid.IntRange(0, 150).Draw(t, "packets") {
				f := flows[rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "flow")]
				hdr := rapid.SampledFrom([]int{12, 12, 12, 16, 28, roce.MaxHeaderLen}).Draw(t, "header")
				size := rapid.SampledFrom([]int{0, 1, 64, 255, InlineCopy, InlineCopy + 1, 1024, 4096}).Draw(t, "payload")
				if small {
					size &= 0xFF
				}
				var pieces [][]byte
				for left := size; left > 0; {
					k := left
					if rapid.IntRange(0, 3).Draw(t, "cut") == 0 {
						k = rapid.IntRange(0, left).Draw(t, "piece")
					}
					at := rapid.IntRange(0, 4096).Draw(t, "at")
					pieces = append(pieces, memory[at:at+k])
					left -= k
				}
				if tx.Full(len(pieces)) {
					check(t, tx, want)
					want = nil
					tx.Reset()
				}
				p := newPacket(f, n, hdr, pieces...)
				copy(tx.Begin(f, hdr, size), p.hdr)
				giveUp := rapid.IntRange(0, 4).Draw(t, "give up") == 0
				upTo := len(pieces)
				if giveUp {
					upTo = rapid.IntRange(0, len(pieces)).Draw(t, "after")
				}
				for _, b := range pieces[:upTo] {
					if err := tx.Payload(b); err != nil {
						t.Fatal(err)
					}
				}
				if giveUp {
					tx.Abort()
					tx.Abort()
				} else {
					tx.End()
					want = append(want, p)
				}
				if len(tx.Msgs) > maxMsgs || len(tx.Frags) > maxFrags || tx.used > arenaBytes {
					t.Fatal("Full let too much in")
				}
			}
			check(t, tx, want)
			tx.Reset()
		}
	})
}

// Filling a batch until it is Full, with each kind of packet, stays in bounds
// and allocates nothing.
func TestFullAllocatesNothing(t *testing.T) {
	big := make([]byte, 4096)
	for _, c := range []struct{ hdr, payload, pieces, maxSegs int }{
		{12, 0, 1, 64},
		{roce.MaxHeaderLen, InlineCopy, 1, 64},
		{roce.MaxHeaderLen, InlineCopy - 1, 2, 1},
		{12, 4096, 1, 64},
		{28, 4096, MaxPieces, 64},
		{12, 257, MaxPieces, 128},
	} {
		tx := NewTx(TxCaps{MaxSegs: c.maxSegs})
		f := flow4(0)
		packets := 0
		n := testing.AllocsPerRun(3, func() {
			tx.Reset()
			packets = 0
			for ; !tx.Full(c.pieces); packets++ {
				h := tx.Begin(f, c.hdr, c.payload)
				clear(h)
				left := c.payload
				for i := range c.pieces {
					k := left / (c.pieces - i)
					if err := tx.Payload(big[:k]); err != nil {
						t.Fatal(err)
					}
					left -= k
				}
				tx.End()
			}
		})
		if n != 0 {
			t.Errorf("%+v: %v allocations", c, n)
		}
		if packets < 30 {
			t.Errorf("%+v: full after %d packets", c, packets)
		}
		for i := range tx.Msgs {
			if tx.Msgs[i].Count > 1024 {
				t.Errorf("%+v: %d fragments in one send", c, tx.Msgs[i].Count)
			}
		}
	}
}

func BenchmarkTx(b *testing.B) {
	mem := make([]byte, 4096)
	for _, n := range []int{8, 64, 256, 1024, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(n))
			tx := NewTx(TxCaps{MaxSegs: 64})
			f := flow4(0)
			for b.Loop() {
				if tx.Full(1) {
					tx.Reset()
				}
				roce.BTH(tx.Begin(f, 12, n)).Put(roce.Opcode(4), false, 0, 0xFFFF, 7, false, 9)
				if err := tx.Payload(mem[:n]); err != nil {
					b.Fatal(err)
				}
				tx.End()
			}
		})
	}
}
