package mad

import (
	"encoding/binary"
)

// SIDRREQ is the data of a service id resolution request (IBA 12.11.1): which queue pair serves datagrams?
type SIDRREQ []byte

// RequestID returns the id of the request, chosen by who asks, echoed by the answer.
func (m SIDRREQ) RequestID() uint32 { return binary.BigEndian.Uint32(m) }

// SetRequestID sets the id of the request.
func (m SIDRREQ) SetRequestID(v uint32) { binary.BigEndian.PutUint32(m, v) }

// PKey returns the partition key.
func (m SIDRREQ) PKey() uint16 { return binary.BigEndian.Uint16(m[4:]) }

// SetPKey sets the partition key.
func (m SIDRREQ) SetPKey(v uint16) { binary.BigEndian.PutUint16(m[4:], v) }

// ServiceID returns the service id; see ServiceID.
func (m SIDRREQ) ServiceID() uint64 { return binary.BigEndian.Uint64(m[8:]) }

// SetServiceID sets the service id.
func (m SIDRREQ) SetServiceID(v uint64) { binary.BigEndian.PutUint64(m[8:], v) }

// PrivateData returns the 216 bytes of private data, in place; what the user did not give is zero.
func (m SIDRREQ) PrivateData() []byte { return m[16:232:232] }

// SIDRREP is the data of the answer to a service id resolution request (IBA 12.11.2).
type SIDRREP []byte

// RequestID returns the id of the request, chosen by who asks, echoed by the answer.
func (m SIDRREP) RequestID() uint32 { return binary.BigEndian.Uint32(m) }

// SetRequestID sets the id of the request.
func (m SIDRREP) SetRequestID(v uint32) { binary.BigEndian.PutUint32(m, v) }

// Status returns the status.
func (m SIDRREP) Status() SIDRStatus { return SIDRStatus(m[4]) }

// SetStatus sets the status.
func (m SIDRREP) SetStatus(v SIDRStatus) { m[4] = uint8(v) }

// InfoLength returns the bytes of Info that count.
func (m SIDRREP) InfoLength() uint8 { return m[5] }

// SetInfoLength sets the bytes of Info that count.
func (m SIDRREP) SetInfoLength(v uint8) { m[5] = v }

// QPN returns the number of the queue pair that serves.
func (m SIDRREP) QPN() uint32 { return get24(m[8:]) }

// SetQPN sets the number of the queue pair that serves.
func (m SIDRREP) SetQPN(v uint32) { put24(m[8:], v) }

// ServiceID returns the service id.
func (m SIDRREP) ServiceID() uint64 { return binary.BigEndian.Uint64(m[12:]) }

// SetServiceID sets the service id.
func (m SIDRREP) SetServiceID(v uint64) { binary.BigEndian.PutUint64(m[12:], v) }

// QKey returns the Q_Key of the queue pair.
func (m SIDRREP) QKey() uint32 { return binary.BigEndian.Uint32(m[20:]) }

// SetQKey sets the Q_Key of the queue pair.
func (m SIDRREP) SetQKey(v uint32) { binary.BigEndian.PutUint32(m[20:], v) }

// Info returns the additional information, in place; InfoLength bytes of it count.
func (m SIDRREP) Info() []byte { return m[24:96:96] }

// PrivateData returns the 136 bytes of private data, in place; what the user did not give is zero.
func (m SIDRREP) PrivateData() []byte { return m[96:232:232] }

// VendorID returns the vendor id of enhanced connection establishment, 24 bits in two places; Linux fills the low 16.
func (m SIDRREP) VendorID() uint32 { return uint32(m[6])<<16 | uint32(m[7])<<8 | uint32(m[11]) }

// SetVendorID sets the vendor id of enhanced connection establishment.
func (m SIDRREP) SetVendorID(v uint32) { m[6], m[7], m[11] = byte(v>>16), byte(v>>8), byte(v) }
