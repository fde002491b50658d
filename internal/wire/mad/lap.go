package mad

import (
	"encoding/binary"

	"github.com/verbena-rdma/verbena/ib"
)

// LAP is the data of a load-alternate-path message (IBA 12.8.1). Linux drops it on RoCE ports.
type LAP []byte

// LocalCommID returns the sender's communication id.
func (m LAP) LocalCommID() uint32 { return binary.BigEndian.Uint32(m) }

// SetLocalCommID sets the sender's communication id.
func (m LAP) SetLocalCommID(v uint32) { binary.BigEndian.PutUint32(m, v) }

// RemoteCommID returns the receiver's communication id: the local one of the message that this answers.
func (m LAP) RemoteCommID() uint32 { return binary.BigEndian.Uint32(m[4:]) }

// SetRemoteCommID sets the receiver's communication id.
func (m LAP) SetRemoteCommID(v uint32) { binary.BigEndian.PutUint32(m[4:], v) }

// RemoteQPN returns the number of the receiver's queue pair.
func (m LAP) RemoteQPN() uint32 { return get24(m[12:]) }

// SetRemoteQPN sets the number of the receiver's queue pair.
func (m LAP) SetRemoteQPN(v uint32) { put24(m[12:], v) }

// RemoteCMResponseTimeout returns the time within which the receiver shall answer: 4.096 us to the power of two.
func (m LAP) RemoteCMResponseTimeout() uint8 { return bits(m[15], 3, 5) }

// SetRemoteCMResponseTimeout sets the time within which the receiver shall answer.
func (m LAP) SetRemoteCMResponseTimeout(v uint8) { setBits(&m[15], 3, 5, v) }

// LocalLID returns the LID of the sender on the alternate path.
func (m LAP) LocalLID() uint16 { return binary.BigEndian.Uint16(m[20:]) }

// SetLocalLID sets the LID of the sender on the alternate path.
func (m LAP) SetLocalLID(v uint16) { binary.BigEndian.PutUint16(m[20:], v) }

// RemoteLID returns the LID of the receiver on the alternate path.
func (m LAP) RemoteLID() uint16 { return binary.BigEndian.Uint16(m[22:]) }

// SetRemoteLID sets the LID of the receiver on the alternate path.
func (m LAP) SetRemoteLID(v uint16) { binary.BigEndian.PutUint16(m[22:], v) }

// LocalGID returns the GID of the sender on the alternate path.
func (m LAP) LocalGID() ib.GID { return ib.GID(m[24:40]) }

// SetLocalGID sets the GID of the sender on the alternate path.
func (m LAP) SetLocalGID(v ib.GID) { copy(m[24:40], v[:]) }

// RemoteGID returns the GID of the receiver on the alternate path.
func (m LAP) RemoteGID() ib.GID { return ib.GID(m[40:56]) }

// SetRemoteGID sets the GID of the receiver on the alternate path.
func (m LAP) SetRemoteGID(v ib.GID) { copy(m[40:56], v[:]) }

// FlowLabel returns the flow label, 20 bits.
func (m LAP) FlowLabel() uint32 { return get24(m[56:]) >> 4 }

// SetFlowLabel sets the flow label.
func (m LAP) SetFlowLabel(v uint32) { put24(m[56:], v<<4|uint32(m[58]&0xF)) }

// TrafficClass returns the traffic class.
func (m LAP) TrafficClass() uint8 { return m[59] }

// SetTrafficClass sets the traffic class.
func (m LAP) SetTrafficClass(v uint8) { m[59] = v }

// HopLimit returns the hop limit.
func (m LAP) HopLimit() uint8 { return m[60] }

// SetHopLimit sets the hop limit.
func (m LAP) SetHopLimit(v uint8) { m[60] = v }

// PacketRate returns the code of the packet rate.
func (m LAP) PacketRate() uint8 { return bits(m[61], 0, 6) }

// SetPacketRate sets the code of the packet rate.
func (m LAP) SetPacketRate(v uint8) { setBits(&m[61], 0, 6, v) }

// SL returns the service level.
func (m LAP) SL() uint8 { return bits(m[62], 4, 4) }

// SetSL sets the service level.
func (m LAP) SetSL(v uint8) { setBits(&m[62], 4, 4, v) }

// SubnetLocal returns whether the path stays in the subnet.
func (m LAP) SubnetLocal() bool { return bits(m[62], 3, 1) != 0 }

// SetSubnetLocal sets whether the path stays in the subnet.
func (m LAP) SetSubnetLocal(v bool) { setFlag(&m[62], 3, v) }

// LocalACKTimeout returns the ACK timeout on the alternate path: 4.096 us to the power of two.
func (m LAP) LocalACKTimeout() uint8 { return bits(m[63], 3, 5) }

// SetLocalACKTimeout sets the ACK timeout on the alternate path.
func (m LAP) SetLocalACKTimeout(v uint8) { setBits(&m[63], 3, 5, v) }

// PrivateData returns the 168 bytes of private data, in place; what the user did not give is zero.
func (m LAP) PrivateData() []byte { return m[64:232:232] }

// APR is the data of an alternate path response (IBA 12.8.2). Linux drops it on RoCE ports.
type APR []byte

// LocalCommID returns the sender's communication id.
func (m APR) LocalCommID() uint32 { return binary.BigEndian.Uint32(m) }

// SetLocalCommID sets the sender's communication id.
func (m APR) SetLocalCommID(v uint32) { binary.BigEndian.PutUint32(m, v) }

// RemoteCommID returns the receiver's communication id: the local one of the message that this answers.
func (m APR) RemoteCommID() uint32 { return binary.BigEndian.Uint32(m[4:]) }

// SetRemoteCommID sets the receiver's communication id.
func (m APR) SetRemoteCommID(v uint32) { binary.BigEndian.PutUint32(m[4:], v) }

// InfoLength returns the bytes of Info that count.
func (m APR) InfoLength() uint8 { return m[8] }

// SetInfoLength sets the bytes of Info that count.
func (m APR) SetInfoLength(v uint8) { m[8] = v }

// Status returns the status: 0 is accepted.
func (m APR) Status() uint8 { return m[9] }

// SetStatus sets the status.
func (m APR) SetStatus(v uint8) { m[9] = v }

// Info returns the additional information, in place; InfoLength bytes of it count.
func (m APR) Info() []byte { return m[12:84:84] }

// PrivateData returns the 148 bytes of private data, in place; what the user did not give is zero.
func (m APR) PrivateData() []byte { return m[84:232:232] }
