package shard

import (
	"bytes"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// sharedPort is a port of a process that has the numbers of slot 5.
type sharedPort struct {
	*fakePort
	answer port.Forwarded
	got    []pkt.Datagram // Data is a copy
	to     []ib.QPN

	flushed int // of got
	mads    [][]byte
}

const (
	slot5 = 5 << 17
	slot6 = 6 << 17
)

func (p *sharedPort) Numbers() (bits, mask ib.QPN) { return slot5, 0x7F << 17 }

func (p *sharedPort) Forward(n ib.QPN, d *pkt.Datagram) port.Forwarded {
	p.to = append(p.to, n)
	p.got = append(p.got, *d)
	p.got[len(p.got)-1].Data = bytes.Clone(d.Data)
	return p.answer
}

func (p *sharedPort) Flush() { p.flushed = len(p.got) }

func (p *sharedPort) Management(d *pkt.Datagram, data []byte) port.Forwarded {
	p.mads = append(p.mads, bytes.Clone(data))
	p.got = append(p.got, *d)
	return p.answer
}

func newShared(answer port.Forwarded) (*virtual, *sharedPort) {
	v := &virtual{port: newFakePort(), now: 1e9}
	p := &sharedPort{fakePort: v.port, answer: answer}
	v.Engine = NewEngine(Config{Port: p, Mem: mem.NewTable(16, 1), Clock: func() int64 { return v.now }, Shards: 2, Manual: true})
	return v, p
}

// together coalesces datagrams as the kernel does.
func together(list ...pkt.Datagram) pkt.Datagram {
	d := list[0]
	d.Data = nil
	for _, o := range list {
		d.Data = append(d.Data, o.Data...)
	}
	return d
}

// segment is packet as the k-th segment of a send.
func segment(n ib.QPN, psn, k int) pkt.Datagram {
	d := packet(n, psn)
	p := pathOf(&d)
	putID(&p, d.Data, uint16(7+k))
	return d
}

// Segments for another process that came in one datagram with ours are given to it, those
// that follow each other together, and none of them is processed here.
func TestStraysAreForwarded(t *testing.T) {
	v, p := newShared(port.Handed)
	q := addQP(t, v.Engine, slot5|3)
	d := together(segment(slot5|3, 0, 0), segment(slot6|3, 1, 1), segment(slot6|9, 2, 2), segment(slot5|3, 3, 3), segment(7<<17, 4, 4))
	d.TOS, d.TTL = 0x20, 61
	p.arrive(d)
	v.turnAt(1e9)
	if q.packets != 2 {
		t.Errorf("%d packets of two were ours", q.packets)
	}
	size := d.SegSize
	for i, want := range []struct {
		n       ib.QPN
		at, len int
		id      uint16
	}{{slot6 | 3, size, 2 * size, 8}, {7 << 17, 4 * size, size, 11}} {
		if i >= len(p.got) {
			t.Fatalf("%d datagrams were forwarded", len(p.got))
		}
		g := p.got[i]
		if p.to[i] != want.n || !bytes.Equal(g.Data, d.Data[want.at:want.at+want.len]) || g.SegSize != size || g.ID != want.id ||
			g.Src != d.Src || g.Dst != d.Dst || g.TOS != d.TOS || g.TTL != d.TTL {
			t.Errorf("%d: to %#x, %+v", i, p.to[i], g)
		}
	}
	if st := v.Stats(); len(p.got) != 2 || p.flushed != 2 || st.Strays != 3 || st.RcvdPackets != 2 || st.DropNoQP != 0 || st.DropICRC != 0 || st.DropID != 0 {
		t.Errorf("%d, %+v", len(p.got), st)
	}
}

// What nobody takes has a counter, and what somebody gave to us goes to nobody else.
func TestStraysThatNobodyTakes(t *testing.T) {
	for _, c := range []struct {
		answer        port.Forwarded
		relayed       bool
		full, unknown uint64
	}{{port.Full, false, 2, 0}, {port.Nobody, false, 0, 2}, {port.Handed, true, 0, 2}} {
		v, p := newShared(c.answer)
		d := together(segment(slot6, 0, 0), segment(slot6, 1, 1))
		d.Relayed = c.relayed
		mine := packet(slot5|77, 0) // nobody's, but of our numbers
		p.arrive(d, mine)
		v.turnAt(1e9)
		if st := v.Stats(); st.Strays != 0 || st.DropStray != c.full || st.DropNoQP != c.unknown+1 || len(p.got) != map[bool]int{false: 1}[c.relayed] {
			t.Errorf("%+v: %d, %+v", c, len(p.got), st)
		}
	}
}

// A management datagram goes to the process whose it is, of several that came together each
// to its own.
func TestManagementIsRouted(t *testing.T) {
	mad := func(k int) pkt.Datagram {
		d := packet(ib.QPNGSI, 0)
		b := make([]byte, roce.BTHLen+roce.DETHLen+driver.MADLen+roce.ICRCLen)
		roce.BTH(b).Put(roce.OpUDSendOnly, false, 0, 0xFFFF, uint32(ib.QPNGSI), false, 0)
		roce.DETH(b[roce.BTHLen:]).Put(uint32(ib.QKeyGSI), uint32(ib.QPNGSI))
		b[roce.BTHLen+roce.DETHLen] = byte(k)
		d.Data, d.SegSize = b, len(b)
		p := pathOf(&d)
		putID(&p, b, uint16(7+k))
		return d
	}
	for _, c := range []struct {
		answer                    port.Forwarded
		ours                      int
		relayed, full, gsi, asked uint64
		d                         pkt.Datagram
	}{
		{answer: port.Ours, ours: 2, asked: 2, d: together(mad(0), mad(1))},
		{answer: port.Handed, relayed: 2, asked: 2, d: together(mad(0), mad(1))},
		{answer: port.Full, full: 1, asked: 1, d: mad(0)},
		{answer: port.Nobody, gsi: 1, asked: 1, d: mad(0)},
		{answer: port.Handed, ours: 1, d: func() pkt.Datagram { d := mad(0); d.Relayed = true; return d }()},
	} {
		v, p := newShared(c.answer)
		told := 0
		g, err := v.OpenGSI(func() { told++ })
		if err != nil {
			t.Fatal(err)
		}
		p.arrive(c.d)
		v.turnAt(1e9)
		var m driver.MAD
		n := 0
		for ; g.Recv(&m); n++ {
			if m.Data[0] != byte(n) {
				t.Errorf("datagram %d is %d", n, m.Data[0])
			}
		}
		st := v.Stats()
		if n != c.ours || st.MADRelayed != c.relayed || st.DropStray != c.full || st.DropGSI != c.gsi || uint64(len(p.mads)) != c.asked {
			t.Errorf("%d ours, asked %d, %+v", n, len(p.mads), st)
		}
		for i := range p.mads {
			if p.mads[i][0] != byte(i) || p.got[i].SegSize != c.d.SegSize || len(p.got[i].Data) != c.d.SegSize {
				t.Errorf("asked for %d: %+v", p.mads[i][0], p.got[i])
			}
		}
	}
}
