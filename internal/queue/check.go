package queue

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// WRError is the refusal of a work request, or of a queue's new size or limit.
type WRError struct {
	Field  string        // of the work request or the queue's attributes, or "queue"
	Err    syscall.Errno // what errors.Is matches
	Detail string
}

// Error names the field and says what is wrong with it.
func (e *WRError) Error() string { return e.Field + ": " + e.Detail + ": " + e.Err.Error() }

// Parameter is what is at fault; empty if it is not one.
func (e *WRError) Parameter() string {
	if e.Field == "queue" {
		return ""
	}
	return e.Field
}

// Unwrap gives the errno.
func (e *WRError) Unwrap() error { return e.Err }

// ErrFull refuses a work request because the queue is full: ENOMEM, which means
// nothing else here (ibv_post_send(3)).
var ErrFull error = &WRError{"queue", syscall.ENOMEM, "is full: poll completions, then post again"}

// Ops is a set of send opcodes.
type Ops uint64

// OpSet makes a set of opcodes.
func OpSet(ops ...ib.WROpcode) (s Ops) {
	for _, o := range ops {
		s |= 1 << o
	}
	return s
}

// Has reports whether the opcode is in the set.
func (s Ops) Has(op ib.WROpcode) bool { return op < 64 && s>>op&1 != 0 }

// The opcodes by what they do.
const (
	opsSend   Ops = 1<<ib.WRSend | 1<<ib.WRSendWithImm
	opsWrite  Ops = 1<<ib.WRRDMAWrite | 1<<ib.WRRDMAWriteWithImm
	opsAtomic Ops = 1<<ib.WRAtomicCmpAndSwp | 1<<ib.WRAtomicFetchAndAdd
	opsMemory Ops = 1<<ib.WRLocalInv | 1<<ib.WRBindMW | 1<<ib.WRRegMR | OpsIntegrity
	opsInline Ops = opsSend | opsWrite | 1<<ib.WRSendWithInv | 1<<ib.WRAtomicWrite

	opsKnown Ops = opsRC | opsUD

	// What a queue pair of a type may send (ibv_post_send(3); UC has no SEND
	// with invalidate on the wire, whatever its table says).
	opsUD Ops = opsSend | 1<<ib.WRTSO | 1<<ib.WRDriver1
	opsUC Ops = opsSend | opsWrite | opsMemory | 1<<ib.WRDriver1
	opsRC Ops = opsUC | opsAtomic | 1<<ib.WRRDMARead | 1<<ib.WRSendWithInv | opsExtended | OpsReadInv
)

// OpsBase is what every device offers: messages, RDMA, atomics, and the local
// operations on memory.
const OpsBase = opsSend | opsWrite | opsAtomic | opsMemory&^OpsIntegrity | 1<<ib.WRRDMARead | 1<<ib.WRSendWithInv

// OpsReadInv is what a device offers that has READs which invalidate a key.
const OpsReadInv Ops = 1 << ib.WRReadWithInv

// OpsIntegrity is what a device offers that has signature regions.
const OpsIntegrity Ops = 1 << ib.WRRegMRIntegrity

const flagsKnown = ib.SendFence | ib.SendSignaled | ib.SendSolicited | ib.SendInline

// Limits is what a queue pair's send requests are checked against.
type Limits struct {
	MaxSGE    int
	MaxSGERd  int // of READs; 0: MaxSGE too
	MaxInline int
	Ops       Ops // opcodes that the device offers
}

// Check says whether a send work request may be posted to a queue pair of the
// given type. What depends on the queue pair's state, keys or path is not
// checked here. The error is a *WRError: EINVAL, or EOPNOTSUPP for an opcode
// that the type has but the device does not offer.
func Check(wr *driver.SendWR, typ ib.QPType, l *Limits) error {
	if err := CheckOpcode(wr.Opcode, typ, l); err != nil {
		return err
	}
	if u := wr.Flags &^ flagsKnown; u != 0 {
		if u == ib.SendIPCSum {
			return &WRError{"Flags", syscall.EINVAL, "no checksum offload"}
		}
		return &WRError{"Flags", syscall.EINVAL, fmt.Sprintf("unknown flags %#x", uint32(u))}
	}
	if len(wr.SGList) > l.MaxSGE {
		return &WRError{"SGList", syscall.EINVAL, fmt.Sprintf("%d elements, at most %d", len(wr.SGList), l.MaxSGE)}
	}
	if l.MaxSGERd != 0 && len(wr.SGList) > l.MaxSGERd && isRead(wr.Opcode) {
		return &WRError{"SGList", syscall.EINVAL, fmt.Sprintf("%d elements, at most %d of a READ (MaxSGERd)", len(wr.SGList), l.MaxSGERd)}
	}
	var total uint64
	for i := range wr.SGList {
		total += uint64(wr.SGList[i].Length)
	}
	if wr.Flags&ib.SendInline != 0 {
		if !opsInline.Has(wr.Opcode) {
			return &WRError{"Flags", syscall.EINVAL, "only SEND, RDMA WRITE and ATOMIC WRITE may be inline"}
		}
		if len(wr.SGList) == 0 {
			total = uint64(len(wr.InlineData))
		}
		if total > uint64(max(l.MaxInline, 0)) && wr.Opcode != ib.WRAtomicWrite {
			return &WRError{payloadField(wr), syscall.EINVAL, fmt.Sprintf("%d bytes inline, at most %d", total, l.MaxInline)}
		}
	} else if len(wr.InlineData) > 0 {
		return &WRError{"InlineData", syscall.EINVAL, "is set, but Flags lacks ib.SendInline"}
	}
	if total > ib.MaxMsgSize {
		return &WRError{"SGList", syscall.EINVAL, fmt.Sprintf("%d bytes, a message has at most %d", total, uint64(ib.MaxMsgSize))}
	}
	if opsExtended.Has(wr.Opcode) {
		if err := checkExtended(wr, total); err != nil {
			return err
		}
	}
	if opsAtomic.Has(wr.Opcode) && total != 8 {
		return &WRError{"SGList", syscall.EINVAL, fmt.Sprintf("%d bytes for the result of an atomic, it has 8", total)}
	}
	if opsMemory.Has(wr.Opcode) && wr.Opcode != ib.WRLocalInv && wr.Bind == nil {
		return &WRError{"Bind", syscall.EINVAL, "is nil"}
	}
	if typ == ib.UD {
		if wr.AH == nil {
			return &WRError{"AH", syscall.EINVAL, "is nil, PD.CreateAH makes one"}
		}
		if wr.RemoteQPN > ib.QPNMax {
			return &WRError{"RemoteQPN", syscall.EINVAL, fmt.Sprintf("%#x has more than 24 bits", uint32(wr.RemoteQPN))}
		}
	}
	return nil
}

// CheckOpcode is the part of Check that only needs the opcode.
func CheckOpcode(op ib.WROpcode, typ ib.QPType, l *Limits) error {
	if !legal(typ).Has(op) || !l.Ops.Has(op) {
		return opcodeError(op, typ)
	}
	return nil
}

// legal is the set of opcodes that a type of queue pair may send.
func legal(typ ib.QPType) Ops {
	switch typ {
	case ib.RC, ib.XRCSend:
		return opsRC
	case ib.UC:
		return opsUC
	case ib.UD:
		return opsUD
	}
	return 0
}

func opcodeError(op ib.WROpcode, typ ib.QPType) error {
	switch {
	case legal(typ).Has(op):
		return &WRError{"Opcode", syscall.EOPNOTSUPP, fmt.Sprintf("%v is not offered by the device", op)}
	case opsKnown.Has(op):
		return &WRError{"Opcode", syscall.EINVAL, fmt.Sprintf("%v is not for queue pairs of type %v", op, typ)}
	}
	return &WRError{"Opcode", syscall.EINVAL, fmt.Sprintf("unknown opcode %d", op)}
}

func isRead(op ib.WROpcode) bool { return op == ib.WRRDMARead || op == ib.WRReadWithInv }

// CheckRecv says whether a receive work request may be posted to a queue whose
// requests have at most maxSGE elements. The error is a *WRError: EINVAL.
func CheckRecv(wr *driver.RecvWR, maxSGE int) error {
	if len(wr.SGList) > maxSGE {
		return &WRError{"SGList", syscall.EINVAL, fmt.Sprintf("%d elements, at most %d", len(wr.SGList), maxSGE)}
	}
	return nil
}
