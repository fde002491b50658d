package port

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/pkt"
)

// Sharer is implemented by ports whose addresses other processes of the host may
// share. Each of them has queue pair numbers of its own, by which what arrives
// finds its process: mostly in the kernel, else over the process that got it.
type Sharer interface {
	// Numbers tells which queue pair numbers are this process's: every n with
	// n&mask == bits. A mask of 0: all are, nobody shares. It never changes.
	Numbers() (bits, mask ib.QPN)
	// Forward gives a datagram for another process's queue pair n to it. All segments
	// are for n's process. Only who may call Recv may call it, and what follows.
	// It never blocks.
	Forward(n ib.QPN, d *pkt.Datagram) Forwarded
	// Management is Forward for a datagram to queue pair 1, data its 256 bytes, which
	// may be for this process: Ours.
	Management(d *pkt.Datagram, data []byte) Forwarded
	// Flush sees to it that what was handed over is on its way. Who has forwarded
	// something calls it before it calls Recv again, or sleeps.
	Flush()
}

// Forwarded is what became of a datagram.
type Forwarded uint8

// What became of a datagram that may be another process's.
const (
	Ours   Forwarded = iota // it is this process's
	Handed                  // the other one has it
	Nobody                  // there is no such process
	Full                    // the other one does not take what it was given: dropped
)
