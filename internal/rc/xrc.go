package rc

import (
	"github.com/verbena-rdma/verbena/internal/transport"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// XRC is RC with other opcodes, an XRCETH in every request, and a responder that
// takes receive queue, protection domain and completion queue from the shared
// receive queue which the XRCETH names (IBA A14). The queue pair's own are the
// rights (QPAccessFlags), the saved READs and atomics, and the sequence of PSNs:
// messages to different receive queues follow each other, they do not mix.

// xrcLen is what XRC adds to a request packet, in bytes.
func (q *QP) xrcLen() int {
	if q.class == roce.Opcode(roce.TransportXRC) {
		return roce.XRCETHLen
	}
	return 0
}

// checkSRQ finds the receive queue that a request is for. Its protection domain
// holds for what a receive takes in and for the keys of WRITEs, READs and atomics,
// as in Mellanox' devices, whose target queue pairs are made in a domain of the
// driver, and in the patches that proposed XRC for rdma_rxe.
//
// A number that the XRC domain does not have, or another one in the middle of a
// message, is an invalid request. The verbs have no word for it; hns has an event of
// its own for it, the patches for rdma_rxe answer with a remote access error.
func (r *responder) checkSRQ(p *transport.Packet, f roce.OpFlags) verdict {
	h := p.XRCETH()
	if h == nil {
		return invalid
	}
	n := h.SRQN()
	if !f.Any(roce.FlagStart) && n != r.b.SRQNum() || !r.b.SelectSRQ(n) {
		return invalid
	}
	return good
}
