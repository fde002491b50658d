package shard

import (
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/trace"
)

// traceTx shows the packets of a batch that is about to be sent. The k-th
// segment of a send leaves with IP identification k.
func traceTx(rec trace.Recorder, now int64, b *pkt.Tx) {
	for i := range b.Msgs {
		m := &b.Msgs[i]
		p := trace.Packet{
			Time: now, Sent: true, Src: m.Flow.Src(), Dst: m.Flow.Dst(), SrcPort: m.Flow.SrcPort(),
			TOS: m.Flow.TClass, TTL: m.Flow.HopLimit, IDKnown: true,
		}
		frags := b.Frags[m.First : m.First+m.Count]
		at := 0 // offset of frags[0] in the message
		for start := 0; start < m.Bytes; start += m.SegSize {
			for start >= at+len(frags[0]) {
				at += len(frags[0])
				frags = frags[1:]
			}
			// Headers stand in the batch's own memory, in one piece, behind the ICRC
			// of the packet before or alone.
			p.Size = min(m.SegSize, m.Bytes-start)
			head := frags[0][start-at:]
			p.Head = head[:min(len(head), p.Size)]
			p.Rest = frags[1:]
			rec(&p)
			p.ID++
		}
	}
}

// traceRx shows a received segment; id is its IP identification if the port tells them.
func traceRx(rec trace.Recorder, now int64, seg []byte, id uint16, d *pkt.Datagram) {
	rec(&trace.Packet{
		Time: now, Src: d.Src.Addr().Unmap(), Dst: d.Dst.Unmap(), SrcPort: d.Src.Port(),
		TOS: d.TOS, TTL: d.TTL, ID: id, IDKnown: d.IDKnown, Head: seg, Size: len(seg),
	})
}
