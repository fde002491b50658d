package mad

import (
	"encoding/binary"
)

// REP is the data of a reply to a connection request (IBA 12.6.8): what the passive side accepts.
type REP []byte

// LocalCommID returns the sender's communication id.
func (m REP) LocalCommID() uint32 { return binary.BigEndian.Uint32(m) }

// SetLocalCommID sets the sender's communication id.
func (m REP) SetLocalCommID(v uint32) { binary.BigEndian.PutUint32(m, v) }

// RemoteCommID returns the receiver's communication id: the local one of the message that this answers.
func (m REP) RemoteCommID() uint32 { return binary.BigEndian.Uint32(m[4:]) }

// SetRemoteCommID sets the receiver's communication id.
func (m REP) SetRemoteCommID(v uint32) { binary.BigEndian.PutUint32(m[4:], v) }

// LocalQKey returns the Q_Key, 0 for connected services.
func (m REP) LocalQKey() uint32 { return binary.BigEndian.Uint32(m[8:]) }

// SetLocalQKey sets the Q_Key.
func (m REP) SetLocalQKey(v uint32) { binary.BigEndian.PutUint32(m[8:], v) }

// LocalQPN returns the number of the sender's queue pair.
func (m REP) LocalQPN() uint32 { return get24(m[12:]) }

// SetLocalQPN sets the number of the sender's queue pair.
func (m REP) SetLocalQPN(v uint32) { put24(m[12:], v) }

// LocalEECN returns the end-to-end context; the queue pair of an XRC target.
func (m REP) LocalEECN() uint32 { return get24(m[16:]) }

// SetLocalEECN sets the end-to-end context.
func (m REP) SetLocalEECN(v uint32) { put24(m[16:], v) }

// StartingPSN returns the PSN at which the receiver shall begin to send: that of the sender's receive queue.
func (m REP) StartingPSN() uint32 { return get24(m[20:]) }

// SetStartingPSN sets the PSN at which the receiver shall begin to send.
func (m REP) SetStartingPSN(v uint32) { put24(m[20:], v) }

// ResponderResources returns the READs and atomics that the sender will serve at a time.
func (m REP) ResponderResources() uint8 { return m[24] }

// SetResponderResources sets the READs and atomics that the sender will serve at a time.
func (m REP) SetResponderResources(v uint8) { m[24] = v }

// InitiatorDepth returns the READs and atomics that the sender will have outstanding.
func (m REP) InitiatorDepth() uint8 { return m[25] }

// SetInitiatorDepth sets the READs and atomics that the sender will have outstanding.
func (m REP) SetInitiatorDepth(v uint8) { m[25] = v }

// TargetACKDelay returns the longest time until the sender acknowledges: 4.096 us to the power of two.
func (m REP) TargetACKDelay() uint8 { return bits(m[26], 3, 5) }

// SetTargetACKDelay sets the longest time until the sender acknowledges.
func (m REP) SetTargetACKDelay(v uint8) { setBits(&m[26], 3, 5, v) }

// FailoverAccepted returns whether the alternate path is accepted: 0 is yes.
func (m REP) FailoverAccepted() uint8 { return bits(m[26], 1, 2) }

// SetFailoverAccepted sets whether the alternate path is accepted.
func (m REP) SetFailoverAccepted(v uint8) { setBits(&m[26], 1, 2, v) }

// FlowControl returns whether the sender's queue pair does end-to-end flow control.
func (m REP) FlowControl() bool { return bits(m[26], 0, 1) != 0 }

// SetFlowControl sets whether the sender's queue pair does end-to-end flow control.
func (m REP) SetFlowControl(v bool) { setFlag(&m[26], 0, v) }

// RNRRetryCount returns how often the receiver shall send again after RNR NAKs; 7 is for ever.
func (m REP) RNRRetryCount() uint8 { return bits(m[27], 5, 3) }

// SetRNRRetryCount sets how often the receiver shall send again after RNR NAKs.
func (m REP) SetRNRRetryCount(v uint8) { setBits(&m[27], 5, 3, v) }

// SRQ returns whether the sender's queue pair has a shared receive queue.
func (m REP) SRQ() bool { return bits(m[27], 4, 1) != 0 }

// SetSRQ sets whether the sender's queue pair has a shared receive queue.
func (m REP) SetSRQ(v bool) { setFlag(&m[27], 4, v) }

// LocalCAGUID returns the GUID of the sender's channel adapter.
func (m REP) LocalCAGUID() uint64 { return binary.BigEndian.Uint64(m[28:]) }

// SetLocalCAGUID sets the GUID of the sender's channel adapter.
func (m REP) SetLocalCAGUID(v uint64) { binary.BigEndian.PutUint64(m[28:], v) }

// PrivateData returns the 196 bytes of private data, in place; what the user did not give is zero.
func (m REP) PrivateData() []byte { return m[36:232:232] }

// VendorID returns the vendor id of enhanced connection establishment, 24 bits in three places; 0 is none.
func (m REP) VendorID() uint32 { return uint32(m[15])<<16 | uint32(m[19])<<8 | uint32(m[23]) }

// SetVendorID sets the vendor id of enhanced connection establishment.
func (m REP) SetVendorID(v uint32) { m[15], m[19], m[23] = byte(v>>16), byte(v>>8), byte(v) }
