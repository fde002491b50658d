package shard

import (
	"github.com/verbena-rdma/verbena/internal/pkt"
	"github.com/verbena-rdma/verbena/internal/trace"
)

// traceTx shows the packets of a batch that is about to be sent.
func traceTx(rec trace.Recorder, now int64, b *pkt.Tx) {
	for i := range b.Msgs {
		m := &b.Msgs[i]
		p := trace.Packet{Time: now, Sent: true, Src: m.Flow.Src(), Dst: m.Flow.Dst()}
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
			rec(&p)
		}
	}
}

// traceRx shows a received segment.
func traceRx(rec trace.Recorder, now int64, seg []byte, d *pkt.Datagram) {
	rec(&trace.Packet{Time: now, Src: d.Src.Addr().Unmap(), Dst: d.Dst.Unmap(), Head: seg, Size: len(seg)})
}
