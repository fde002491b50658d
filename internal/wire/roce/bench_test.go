package roce

import (
	"fmt"
	"net/netip"
	"testing"
)

func benchPaths() map[string]Path {
	return map[string]Path{
		"ipv4": NewPath(netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 0xC123),
		"ipv6": NewPath(netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"), 0xC123),
	}
}

func benchPacket(p *Path, payload int) []byte {
	b := build(OpRCSendMiddle, payload)
	PutICRC(b[len(b)-ICRCLen:], p.Compute(b, 0x1234))
	return b
}

var sink uint32

func BenchmarkStart(b *testing.B) {
	for name, p := range benchPaths() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				n = (n + 4) & 0xFFF
				sink ^= p.Start(n, uint16(n))
			}
		})
	}
}

func BenchmarkNewPath(b *testing.B) {
	for name, p := range benchPaths() {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				q := NewPath(p.src, p.dst, p.srcPort)
				sink ^= q.base
			}
		})
	}
}

func BenchmarkStartBTH(b *testing.B) {
	for _, n := range []int{BTHLen, BTHLen + RETHLen, MaxHeaderLen} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			h := make([]byte, n)
			for b.Loop() {
				sink = StartBTH(sink, h)
			}
		})
	}
}

func BenchmarkCheck(b *testing.B) {
	for name, p := range benchPaths() {
		for _, n := range []int{0, 64, 1024, 4096} {
			pkt := benchPacket(&p, n)
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(n))
				for b.Loop() {
					if !p.Check(pkt, 0x1234) {
						b.Fatal("check fails")
					}
				}
			})
		}
	}
}

func BenchmarkSolve(b *testing.B) {
	p := benchPaths()["ipv4"]
	for _, n := range []int{0, 64, 1024, 4096} {
		pkt := benchPacket(&p, n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(n))
			for b.Loop() {
				if id, ok := p.Solve(pkt); !ok || id != 0x1234 {
					b.Fatal("solve fails")
				}
			}
		})
	}
}

func BenchmarkUnshift(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		sink = crcUnshift(sink^0x5555, 4135)
	}
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	pkt := build(OpRCWriteOnlyImm, 1024)
	var p Packet
	for b.Loop() {
		if err := Parse(pkt, &p); err != nil {
			b.Fatal(err)
		}
		sink ^= p.RETH().RKey()
	}
}

func BenchmarkPutHeaders(b *testing.B) {
	b.ReportAllocs()
	buf := make([]byte, BTHLen+RETHLen)
	for b.Loop() {
		BTH(buf).Put(OpRCWriteOnly, false, 0, 0xFFFF, 0x123, true, 5)
		RETH(buf[BTHLen:]).Put(0x1000, 0x55, 4096)
	}
}

func BenchmarkPutGRH4(b *testing.B) {
	b.ReportAllocs()
	buf := make([]byte, GRHLen)
	p := benchPaths()["ipv4"]
	for b.Loop() {
		PutGRH4(buf, p.src, p.dst, 0, 64, 7, 292)
	}
}

// TestNoAllocations: the data path allocates nothing.
func TestNoAllocations(t *testing.T) {
	for name, p := range benchPaths() {
		pkt := benchPacket(&p, 1024)
		grh := make([]byte, GRHLen)
		var pk Packet
		var tr IDTracker
		if n := testing.AllocsPerRun(100, func() {
			q := NewPath(p.src, p.dst, p.srcPort)
			_ = Parse(pkt, &pk)
			q.Check(pkt, 0x1234)
			id, _ := q.Solve(pkt)
			tr.PlausibleAt(1, id)
			sink = Update(StartBTH(q.Start(len(pkt), id), pkt[:BTHLen]), pkt[BTHLen:])
			PutGRH4(grh, p.src, p.dst, 0, 64, id, len(pkt))
			PutGRH6(grh, p.src, p.dst, 0, 0, 64, len(pkt))
			ParseGRH(grh)
			_ = Parse(pkt[:3], &pk)
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
