package roce

import (
	"encoding/binary"

	"github.com/verbena-rdma/verbena/internal/psn"
)

func get24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

func put24(b []byte, v uint32) {
	_ = b[2]
	b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v)
}

// BTH is the Base Transport Header, the first 12 bytes of every packet (IBA 9.2).
//
//	0: opcode
//	1: SE, MigReq, pad count (2 bits), transport version (4 bits)
//	2: P_Key
//	4: FECN, BECN, 6 reserved bits (the whole byte is outside the ICRC)
//	5: destination queue pair
//	8: AckReq, 7 reserved bits
//	9: PSN
type BTH []byte

const (
	bthSE     = 0x80
	bthMigReq = 0x40
	bthFECN   = 0x80
	bthBECN   = 0x40
	bthAckReq = 0x80
)

// Put writes the whole header: MigReq is 1 (the state of a queue pair that does not migrate; some hardware refuses packets without
// it), version, FECN, BECN and reserved bits are 0. It takes the pad count in bytes (0..3) and the low 24 bits of destQP.
func (h BTH) Put(op Opcode, se bool, pad int, pkey uint16, destQP uint32, ackReq bool, p psn.PSN) {
	_ = h[BTHLen-1]
	b1 := byte(bthMigReq | pad&3<<4)
	if se {
		b1 |= bthSE
	}
	var b8 byte
	if ackReq {
		b8 = bthAckReq
	}
	binary.BigEndian.PutUint32(h, uint32(op)<<24|uint32(b1)<<16|uint32(pkey))
	binary.BigEndian.PutUint32(h[4:], destQP&0xFFFFFF)
	binary.BigEndian.PutUint32(h[8:], uint32(b8)<<24|uint32(p)&psn.Mask)
}

// Opcode returns the operation code.
func (h BTH) Opcode() Opcode { return Opcode(h[0]) }

// SE returns the solicited event bit: the responder raises an event for the completion.
func (h BTH) SE() bool { return h[1]&bthSE != 0 }

// MigReq returns the migration bit. Senders without path migration send 1, Linux rdma_rxe sends 0; receivers accept both.
func (h BTH) MigReq() bool { return h[1]&bthMigReq != 0 }

// PadCount returns the number of pad bytes between payload and ICRC, 0..3.
func (h BTH) PadCount() int { return int(h[1]>>4) & 3 }

// TVer returns the transport version, which is 0.
func (h BTH) TVer() uint8 { return h[1] & 0xF }

// PKey returns the partition key; bit 15 is full membership.
func (h BTH) PKey() uint16 { return binary.BigEndian.Uint16(h[2:]) }

// FECN returns the forward explicit congestion notification bit.
func (h BTH) FECN() bool { return h[4]&bthFECN != 0 }

// BECN returns the backward explicit congestion notification bit.
func (h BTH) BECN() bool { return h[4]&bthBECN != 0 }

// DestQP returns the number of the destination queue pair, 24 bits.
func (h BTH) DestQP() uint32 { return get24(h[5:]) }

// AckReq returns whether the requester wants an acknowledgement of this packet.
func (h BTH) AckReq() bool { return h[8]&bthAckReq != 0 }

// PSN returns the packet sequence number.
func (h BTH) PSN() psn.PSN { return psn.PSN(get24(h[9:])) }

// SetOpcode sets the operation code.
func (h BTH) SetOpcode(op Opcode) { h[0] = byte(op) }

// SetSE sets the solicited event bit.
func (h BTH) SetSE(v bool) { setBit(&h[1], bthSE, v) }

// SetMigReq sets the migration bit.
func (h BTH) SetMigReq(v bool) { setBit(&h[1], bthMigReq, v) }

// SetPadCount sets the number of pad bytes, 0..3.
func (h BTH) SetPadCount(n int) { h[1] = h[1]&^0x30 | byte(n&3)<<4 }

// SetTVer sets the transport version; anything but 0 makes receivers drop the packet.
func (h BTH) SetTVer(v uint8) { h[1] = h[1]&^0xF | v&0xF }

// SetPKey sets the partition key.
func (h BTH) SetPKey(v uint16) { binary.BigEndian.PutUint16(h[2:], v) }

// SetFECN sets the forward congestion bit.
func (h BTH) SetFECN(v bool) { setBit(&h[4], bthFECN, v) }

// SetBECN sets the backward congestion bit.
func (h BTH) SetBECN(v bool) { setBit(&h[4], bthBECN, v) }

// SetDestQP sets the destination queue pair number to the low 24 bits of qpn.
func (h BTH) SetDestQP(qpn uint32) { put24(h[5:], qpn) }

// SetAckReq sets the acknowledge request bit.
func (h BTH) SetAckReq(v bool) { setBit(&h[8], bthAckReq, v) }

// SetPSN sets the packet sequence number.
func (h BTH) SetPSN(p psn.PSN) { put24(h[9:], uint32(p)) }

func setBit(b *byte, bit byte, v bool) {
	if v {
		*b |= bit
	} else {
		*b &^= bit
	}
}

// RETH is the RDMA Extended Transport Header of WRITE and READ requests (IBA 9.3): VA, R_Key, DMALen.
type RETH []byte

// Put writes the whole header. The length counts the whole message in bytes, not this packet.
func (h RETH) Put(va uint64, rkey, dmaLen uint32) {
	_ = h[RETHLen-1]
	binary.BigEndian.PutUint64(h, va)
	binary.BigEndian.PutUint32(h[8:], rkey)
	binary.BigEndian.PutUint32(h[12:], dmaLen)
}

// VA returns the remote virtual address.
func (h RETH) VA() uint64 { return binary.BigEndian.Uint64(h) }

// RKey returns the remote key.
func (h RETH) RKey() uint32 { return binary.BigEndian.Uint32(h[8:]) }

// DMALen returns the length of the whole message in bytes; up to 2^31 is legal.
func (h RETH) DMALen() uint32 { return binary.BigEndian.Uint32(h[12:]) }

// SetVA sets the remote virtual address.
func (h RETH) SetVA(v uint64) { binary.BigEndian.PutUint64(h, v) }

// SetRKey sets the remote key.
func (h RETH) SetRKey(v uint32) { binary.BigEndian.PutUint32(h[8:], v) }

// SetDMALen sets the length of the whole message in bytes.
func (h RETH) SetDMALen(v uint32) { binary.BigEndian.PutUint32(h[12:], v) }

// DETH is the Datagram Extended Transport Header (IBA 9.3): Q_Key, source queue pair.
type DETH []byte

// Put writes the whole header, the reserved byte as 0.
func (h DETH) Put(qkey, srcQP uint32) {
	_ = h[DETHLen-1]
	binary.BigEndian.PutUint32(h, qkey)
	binary.BigEndian.PutUint32(h[4:], srcQP&0xFFFFFF)
}

// QKey returns the queue key.
func (h DETH) QKey() uint32 { return binary.BigEndian.Uint32(h) }

// SrcQP returns the sender's queue pair number, 24 bits.
func (h DETH) SrcQP() uint32 { return get24(h[5:]) }

// SetQKey sets the queue key.
func (h DETH) SetQKey(v uint32) { binary.BigEndian.PutUint32(h, v) }

// SetSrcQP sets the source queue pair number to the low 24 bits of qpn.
func (h DETH) SetSrcQP(qpn uint32) { put24(h[5:], qpn) }

// AtomicETH is the Atomic Extended Transport Header (IBA 9.3): VA, R_Key, swap or add operand, compare operand.
type AtomicETH []byte

// Put writes the whole header. FETCH_ADD has its operand in swapAdd and compare 0.
func (h AtomicETH) Put(va uint64, rkey uint32, swapAdd, compare uint64) {
	_ = h[AtomicETHLen-1]
	binary.BigEndian.PutUint64(h, va)
	binary.BigEndian.PutUint32(h[8:], rkey)
	binary.BigEndian.PutUint64(h[12:], swapAdd)
	binary.BigEndian.PutUint64(h[20:], compare)
}

// VA returns the remote virtual address, which must be a multiple of 8.
func (h AtomicETH) VA() uint64 { return binary.BigEndian.Uint64(h) }

// RKey returns the remote key.
func (h AtomicETH) RKey() uint32 { return binary.BigEndian.Uint32(h[8:]) }

// SwapAdd returns the new value of a compare-and-swap or the addend of a fetch-and-add, as a host integer.
func (h AtomicETH) SwapAdd() uint64 { return binary.BigEndian.Uint64(h[12:]) }

// Compare returns the value that a compare-and-swap expects, as a host integer.
func (h AtomicETH) Compare() uint64 { return binary.BigEndian.Uint64(h[20:]) }

// SetVA sets the remote virtual address.
func (h AtomicETH) SetVA(v uint64) { binary.BigEndian.PutUint64(h, v) }

// SetRKey sets the remote key.
func (h AtomicETH) SetRKey(v uint32) { binary.BigEndian.PutUint32(h[8:], v) }

// SetSwapAdd sets the swap or add operand.
func (h AtomicETH) SetSwapAdd(v uint64) { binary.BigEndian.PutUint64(h[12:], v) }

// SetCompare sets the compare operand.
func (h AtomicETH) SetCompare(v uint64) { binary.BigEndian.PutUint64(h[20:], v) }

// AETH is the ACK Extended Transport Header (IBA 9.3): syndrome, MSN.
type AETH []byte

// Put writes the whole header with the low 24 bits of msn.
func (h AETH) Put(s Syndrome, msn uint32) {
	binary.BigEndian.PutUint32(h, uint32(s)<<24|msn&0xFFFFFF)
}

// Syndrome returns what the responder says: ACK, RNR NAK or NAK.
func (h AETH) Syndrome() Syndrome { return Syndrome(h[0]) }

// MSN returns the number of messages the responder has completed, modulo 2^24.
func (h AETH) MSN() uint32 { return get24(h[1:]) }

// SetSyndrome sets the syndrome.
func (h AETH) SetSyndrome(s Syndrome) { h[0] = byte(s) }

// SetMSN sets the message sequence number to the low 24 bits of msn.
func (h AETH) SetMSN(msn uint32) { put24(h[1:], msn) }

// AtomicAckETH is the Atomic Acknowledge Extended Transport Header (IBA 9.3): the value before the operation.
type AtomicAckETH []byte

// Put writes the header.
func (h AtomicAckETH) Put(orig uint64) { binary.BigEndian.PutUint64(h, orig) }

// Orig returns the value that the memory had before the atomic, as a host integer.
func (h AtomicAckETH) Orig() uint64 { return binary.BigEndian.Uint64(h) }

// ImmDt is the immediate data (IBA 9.3). Its meaning is the application's; this package treats it as a big-endian number.
type ImmDt []byte

// Put writes the header.
func (h ImmDt) Put(v uint32) { binary.BigEndian.PutUint32(h, v) }

// Data returns the immediate data.
func (h ImmDt) Data() uint32 { return binary.BigEndian.Uint32(h) }

// IETH is the Invalidate Extended Transport Header (IBA 9.3): the remote key that the responder must invalidate.
type IETH []byte

// Put writes the header.
func (h IETH) Put(rkey uint32) { binary.BigEndian.PutUint32(h, rkey) }

// RKey returns the key to invalidate.
func (h IETH) RKey() uint32 { return binary.BigEndian.Uint32(h) }

// XRCETH is the XRC Extended Transport Header (IBA A14): the shared receive queue that the request is for.
type XRCETH []byte

// Put writes the header with the low 24 bits of srqn, the reserved byte as 0.
func (h XRCETH) Put(srqn uint32) { binary.BigEndian.PutUint32(h, srqn&0xFFFFFF) }

// SRQN returns the number of the shared receive queue, 24 bits.
func (h XRCETH) SRQN() uint32 { return get24(h[1:]) }

// RDETH is the Reliable Datagram Extended Transport Header (IBA 9.3): the end-to-end context.
type RDETH []byte

// Put writes the header with the low 24 bits of eec, the reserved byte as 0.
func (h RDETH) Put(eec uint32) { binary.BigEndian.PutUint32(h, eec&0xFFFFFF) }

// EEC returns the end-to-end context number, 24 bits.
func (h RDETH) EEC() uint32 { return get24(h[1:]) }

// FETH is the Flush Extended Transport Header (IBA A19): what a FLUSH must make visible or persistent, and where.
type FETH []byte

// Placement types of a FLUSH; both may be set.
const (
	FlushGlobalVisibility = 1 << 0 // earlier writes are visible to every reader
	FlushPersistence      = 1 << 1 // earlier writes survive a loss of power
)

// Selectivity levels of a FLUSH.
const (
	FlushRange = 0 // the range in the RETH
	FlushMR    = 1 // the whole memory region of the R_Key
)

// Put writes the header, reserved bits as 0.
func (h FETH) Put(placement, selectivity uint8) {
	binary.BigEndian.PutUint32(h, uint32(placement)&0xF|uint32(selectivity)&3<<4)
}

// Placement returns the placement types, a set of FlushGlobalVisibility and FlushPersistence.
func (h FETH) Placement() uint8 { return h[3] & 0xF }

// Selectivity returns FlushRange or FlushMR (two bits, other values are reserved).
func (h FETH) Selectivity() uint8 { return h[3] >> 4 & 3 }
