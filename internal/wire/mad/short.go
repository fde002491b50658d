package mad

import (
	"encoding/binary"
)

// RTU is the data of a ready-to-use message (IBA 12.6.9): the active side has the reply.
type RTU []byte

// LocalCommID returns the sender's communication id.
func (m RTU) LocalCommID() uint32 { return binary.BigEndian.Uint32(m) }

// SetLocalCommID sets the sender's communication id.
func (m RTU) SetLocalCommID(v uint32) { binary.BigEndian.PutUint32(m, v) }

// RemoteCommID returns the receiver's communication id: the local one of the message that this answers.
func (m RTU) RemoteCommID() uint32 { return binary.BigEndian.Uint32(m[4:]) }

// SetRemoteCommID sets the receiver's communication id.
func (m RTU) SetRemoteCommID(v uint32) { binary.BigEndian.PutUint32(m[4:], v) }

// PrivateData returns the 224 bytes of private data, in place; what the user did not give is zero.
func (m RTU) PrivateData() []byte { return m[8:232:232] }

// MRA is the data of a message receipt acknowledgement (IBA 12.6.6): wait, the answer takes time.
type MRA []byte

// LocalCommID returns the sender's communication id.
func (m MRA) LocalCommID() uint32 { return binary.BigEndian.Uint32(m) }

// SetLocalCommID sets the sender's communication id.
func (m MRA) SetLocalCommID(v uint32) { binary.BigEndian.PutUint32(m, v) }

// RemoteCommID returns the receiver's communication id: the local one of the message that this answers.
func (m MRA) RemoteCommID() uint32 { return binary.BigEndian.Uint32(m[4:]) }

// SetRemoteCommID sets the receiver's communication id.
func (m MRA) SetRemoteCommID(v uint32) { binary.BigEndian.PutUint32(m[4:], v) }

// MessageMRAed returns the message that is acknowledged.
func (m MRA) MessageMRAed() MessageKind { return MessageKind(bits(m[8], 6, 2)) }

// SetMessageMRAed sets the message that is acknowledged.
func (m MRA) SetMessageMRAed(v MessageKind) { setBits(&m[8], 6, 2, uint8(v)) }

// ServiceTimeout returns the time to wait for the answer: 4.096 us to the power of two.
func (m MRA) ServiceTimeout() uint8 { return bits(m[9], 3, 5) }

// SetServiceTimeout sets the time to wait for the answer.
func (m MRA) SetServiceTimeout(v uint8) { setBits(&m[9], 3, 5, v) }

// PrivateData returns the 222 bytes of private data, in place; what the user did not give is zero.
func (m MRA) PrivateData() []byte { return m[10:232:232] }

// REJ is the data of a reject (IBA 12.6.7).
type REJ []byte

// LocalCommID returns the sender's communication id.
func (m REJ) LocalCommID() uint32 { return binary.BigEndian.Uint32(m) }

// SetLocalCommID sets the sender's communication id.
func (m REJ) SetLocalCommID(v uint32) { binary.BigEndian.PutUint32(m, v) }

// RemoteCommID returns the receiver's communication id: the local one of the message that this answers.
func (m REJ) RemoteCommID() uint32 { return binary.BigEndian.Uint32(m[4:]) }

// SetRemoteCommID sets the receiver's communication id.
func (m REJ) SetRemoteCommID(v uint32) { binary.BigEndian.PutUint32(m[4:], v) }

// MessageRejected returns the message that is rejected.
func (m REJ) MessageRejected() MessageKind { return MessageKind(bits(m[8], 6, 2)) }

// SetMessageRejected sets the message that is rejected.
func (m REJ) SetMessageRejected(v MessageKind) { setBits(&m[8], 6, 2, uint8(v)) }

// ARILength returns the bytes of ARI that count.
func (m REJ) ARILength() uint8 { return bits(m[9], 1, 7) }

// SetARILength sets the bytes of ARI that count.
func (m REJ) SetARILength(v uint8) { setBits(&m[9], 1, 7, v) }

// Reason returns why.
func (m REJ) Reason() RejectReason { return RejectReason(binary.BigEndian.Uint16(m[10:])) }

// SetReason sets why.
func (m REJ) SetReason(v RejectReason) { binary.BigEndian.PutUint16(m[10:], uint16(v)) }

// ARI returns the additional reject information, in place; ARILength bytes of it count.
func (m REJ) ARI() []byte { return m[12:84:84] }

// PrivateData returns the 148 bytes of private data, in place; what the user did not give is zero.
func (m REJ) PrivateData() []byte { return m[84:232:232] }

// DREQ is the data of a request to disconnect (IBA 12.6.10).
type DREQ []byte

// LocalCommID returns the sender's communication id.
func (m DREQ) LocalCommID() uint32 { return binary.BigEndian.Uint32(m) }

// SetLocalCommID sets the sender's communication id.
func (m DREQ) SetLocalCommID(v uint32) { binary.BigEndian.PutUint32(m, v) }

// RemoteCommID returns the receiver's communication id: the local one of the message that this answers.
func (m DREQ) RemoteCommID() uint32 { return binary.BigEndian.Uint32(m[4:]) }

// SetRemoteCommID sets the receiver's communication id.
func (m DREQ) SetRemoteCommID(v uint32) { binary.BigEndian.PutUint32(m[4:], v) }

// RemoteQPN returns the number of the receiver's queue pair.
func (m DREQ) RemoteQPN() uint32 { return get24(m[8:]) }

// SetRemoteQPN sets the number of the receiver's queue pair.
func (m DREQ) SetRemoteQPN(v uint32) { put24(m[8:], v) }

// PrivateData returns the 220 bytes of private data, in place; what the user did not give is zero.
func (m DREQ) PrivateData() []byte { return m[12:232:232] }

// DREP is the data of a reply to a disconnect (IBA 12.6.11).
type DREP []byte

// LocalCommID returns the sender's communication id.
func (m DREP) LocalCommID() uint32 { return binary.BigEndian.Uint32(m) }

// SetLocalCommID sets the sender's communication id.
func (m DREP) SetLocalCommID(v uint32) { binary.BigEndian.PutUint32(m, v) }

// RemoteCommID returns the receiver's communication id: the local one of the message that this answers.
func (m DREP) RemoteCommID() uint32 { return binary.BigEndian.Uint32(m[4:]) }

// SetRemoteCommID sets the receiver's communication id.
func (m DREP) SetRemoteCommID(v uint32) { binary.BigEndian.PutUint32(m[4:], v) }

// PrivateData returns the 224 bytes of private data, in place; what the user did not give is zero.
func (m DREP) PrivateData() []byte { return m[8:232:232] }
