package mad

import (
	"encoding/binary"

	"github.com/verbena-rdma/verbena/ib"
)

// REQ is the data of a connection request (IBA 12.6.5): what the active side offers.
type REQ []byte

// LocalCommID returns the sender's communication id.
func (m REQ) LocalCommID() uint32 { return binary.BigEndian.Uint32(m) }

// SetLocalCommID sets the sender's communication id.
func (m REQ) SetLocalCommID(v uint32) { binary.BigEndian.PutUint32(m, v) }

// VendorID returns the vendor id of enhanced connection establishment, 24 bits; 0 is none.
func (m REQ) VendorID() uint32 { return get24(m[5:]) }

// SetVendorID sets the vendor id of enhanced connection establishment.
func (m REQ) SetVendorID(v uint32) { put24(m[5:], v) }

// ServiceID returns the service id that the listener has; see ServiceID.
func (m REQ) ServiceID() uint64 { return binary.BigEndian.Uint64(m[8:]) }

// SetServiceID sets the service id that the listener has.
func (m REQ) SetServiceID(v uint64) { binary.BigEndian.PutUint64(m[8:], v) }

// LocalCAGUID returns the GUID of the sender's channel adapter.
func (m REQ) LocalCAGUID() uint64 { return binary.BigEndian.Uint64(m[16:]) }

// SetLocalCAGUID sets the GUID of the sender's channel adapter.
func (m REQ) SetLocalCAGUID(v uint64) { binary.BigEndian.PutUint64(m[16:], v) }

// LocalQKey returns the Q_Key, 0 for connected services.
func (m REQ) LocalQKey() uint32 { return binary.BigEndian.Uint32(m[28:]) }

// SetLocalQKey sets the Q_Key.
func (m REQ) SetLocalQKey(v uint32) { binary.BigEndian.PutUint32(m[28:], v) }

// LocalQPN returns the number of the sender's queue pair.
func (m REQ) LocalQPN() uint32 { return get24(m[32:]) }

// SetLocalQPN sets the number of the sender's queue pair.
func (m REQ) SetLocalQPN(v uint32) { put24(m[32:], v) }

// ResponderResources returns the READs and atomics that the sender can serve at a time.
func (m REQ) ResponderResources() uint8 { return m[35] }

// SetResponderResources sets the READs and atomics that the sender can serve at a time.
func (m REQ) SetResponderResources(v uint8) { m[35] = v }

// LocalEECN returns the end-to-end context, 0 but for reliable datagrams.
func (m REQ) LocalEECN() uint32 { return get24(m[36:]) }

// SetLocalEECN sets the end-to-end context.
func (m REQ) SetLocalEECN(v uint32) { put24(m[36:], v) }

// InitiatorDepth returns the READs and atomics that the sender will have outstanding.
func (m REQ) InitiatorDepth() uint8 { return m[39] }

// SetInitiatorDepth sets the READs and atomics that the sender will have outstanding.
func (m REQ) SetInitiatorDepth(v uint8) { m[39] = v }

// RemoteEECN returns the remote end-to-end context, 0 but for reliable datagrams.
func (m REQ) RemoteEECN() uint32 { return get24(m[40:]) }

// SetRemoteEECN sets the remote end-to-end context.
func (m REQ) SetRemoteEECN(v uint32) { put24(m[40:], v) }

// RemoteCMResponseTimeout returns the time within which the receiver shall answer: 4.096 us to the power of two.
func (m REQ) RemoteCMResponseTimeout() uint8 { return bits(m[43], 3, 5) }

// SetRemoteCMResponseTimeout sets the time within which the receiver shall answer.
func (m REQ) SetRemoteCMResponseTimeout(v uint8) { setBits(&m[43], 3, 5, v) }

// TransportService returns the service of the connection; TransportExtended means ExtendedTransport.
func (m REQ) TransportService() TransportService { return TransportService(bits(m[43], 1, 2)) }

// SetTransportService sets the service of the connection.
func (m REQ) SetTransportService(v TransportService) { setBits(&m[43], 1, 2, uint8(v)) }

// FlowControl returns whether the sender's queue pair does end-to-end flow control.
func (m REQ) FlowControl() bool { return bits(m[43], 0, 1) != 0 }

// SetFlowControl sets whether the sender's queue pair does end-to-end flow control.
func (m REQ) SetFlowControl(v bool) { setFlag(&m[43], 0, v) }

// StartingPSN returns the PSN at which the receiver shall begin to send: that of the sender's receive queue.
func (m REQ) StartingPSN() uint32 { return get24(m[44:]) }

// SetStartingPSN sets the PSN at which the receiver shall begin to send.
func (m REQ) SetStartingPSN(v uint32) { put24(m[44:], v) }

// LocalCMResponseTimeout returns the time within which the sender answers: 4.096 us to the power of two.
func (m REQ) LocalCMResponseTimeout() uint8 { return bits(m[47], 3, 5) }

// SetLocalCMResponseTimeout sets the time within which the sender answers.
func (m REQ) SetLocalCMResponseTimeout(v uint8) { setBits(&m[47], 3, 5, v) }

// RetryCount returns how often the receiver shall send again before it gives up.
func (m REQ) RetryCount() uint8 { return bits(m[47], 0, 3) }

// SetRetryCount sets how often the receiver shall send again before it gives up.
func (m REQ) SetRetryCount(v uint8) { setBits(&m[47], 0, 3, v) }

// PKey returns the partition key.
func (m REQ) PKey() uint16 { return binary.BigEndian.Uint16(m[48:]) }

// SetPKey sets the partition key.
func (m REQ) SetPKey(v uint16) { binary.BigEndian.PutUint16(m[48:], v) }

// PathMTU returns the code of the path MTU: 1 is 256, 5 is 4096 bytes.
func (m REQ) PathMTU() uint8 { return bits(m[50], 4, 4) }

// SetPathMTU sets the code of the path MTU.
func (m REQ) SetPathMTU(v uint8) { setBits(&m[50], 4, 4, v) }

// RDCExists returns whether a reliable datagram channel exists.
func (m REQ) RDCExists() bool { return bits(m[50], 3, 1) != 0 }

// SetRDCExists sets whether a reliable datagram channel exists.
func (m REQ) SetRDCExists(v bool) { setFlag(&m[50], 3, v) }

// RNRRetryCount returns how often the receiver shall send again after RNR NAKs; 7 is for ever.
func (m REQ) RNRRetryCount() uint8 { return bits(m[50], 0, 3) }

// SetRNRRetryCount sets how often the receiver shall send again after RNR NAKs.
func (m REQ) SetRNRRetryCount(v uint8) { setBits(&m[50], 0, 3, v) }

// MaxCMRetries returns how often messages are sent again.
func (m REQ) MaxCMRetries() uint8 { return bits(m[51], 4, 4) }

// SetMaxCMRetries sets how often messages are sent again.
func (m REQ) SetMaxCMRetries(v uint8) { setBits(&m[51], 4, 4, v) }

// SRQ returns whether the sender's queue pair has a shared receive queue.
func (m REQ) SRQ() bool { return bits(m[51], 3, 1) != 0 }

// SetSRQ sets whether the sender's queue pair has a shared receive queue.
func (m REQ) SetSRQ(v bool) { setFlag(&m[51], 3, v) }

// ExtendedTransport returns the service if TransportService is TransportExtended; 1 is XRC.
func (m REQ) ExtendedTransport() uint8 { return bits(m[51], 0, 3) }

// SetExtendedTransport sets the service if TransportService is TransportExtended.
func (m REQ) SetExtendedTransport(v uint8) { setBits(&m[51], 0, 3, v) }

// PrivateData returns the 92 bytes of private data, in place; what the user did not give is zero.
func (m REQ) PrivateData() []byte { return m[140:232:232] }

// PrimaryPath returns the path of the connection, in place.
func (m REQ) PrimaryPath() Path { return Path(m[52:96:96]) }

// AlternatePath returns the path to migrate to, in place. There is none if its local LID is 0.
func (m REQ) AlternatePath() Path { return Path(m[96:140:140]) }

// Path is one of the two paths in a REQ, 44 bytes.
type Path []byte

// LocalLID returns the LID of the sender of the REQ; Linux writes 0xFFFF over RoCE.
func (p Path) LocalLID() uint16 { return binary.BigEndian.Uint16(p) }

// SetLocalLID sets the LID of the sender of the REQ.
func (p Path) SetLocalLID(v uint16) { binary.BigEndian.PutUint16(p, v) }

// RemoteLID returns the LID of the receiver; Linux writes 0xFFFF over RoCE.
func (p Path) RemoteLID() uint16 { return binary.BigEndian.Uint16(p[2:]) }

// SetRemoteLID sets the LID of the receiver.
func (p Path) SetRemoteLID(v uint16) { binary.BigEndian.PutUint16(p[2:], v) }

// LocalGID returns the GID of the sender of the REQ.
func (p Path) LocalGID() ib.GID { return ib.GID(p[4:20]) }

// SetLocalGID sets the GID of the sender of the REQ.
func (p Path) SetLocalGID(v ib.GID) { copy(p[4:20], v[:]) }

// RemoteGID returns the GID of the receiver.
func (p Path) RemoteGID() ib.GID { return ib.GID(p[20:36]) }

// SetRemoteGID sets the GID of the receiver.
func (p Path) SetRemoteGID(v ib.GID) { copy(p[20:36], v[:]) }

// FlowLabel returns the flow label, 20 bits.
func (p Path) FlowLabel() uint32 { return get24(p[36:]) >> 4 }

// SetFlowLabel sets the flow label.
func (p Path) SetFlowLabel(v uint32) { put24(p[36:], v<<4|uint32(p[38]&0xF)) }

// PacketRate returns the code of the packet rate; 0 is the port's.
func (p Path) PacketRate() uint8 { return bits(p[39], 0, 6) }

// SetPacketRate sets the code of the packet rate.
func (p Path) SetPacketRate(v uint8) { setBits(&p[39], 0, 6, v) }

// TrafficClass returns the traffic class.
func (p Path) TrafficClass() uint8 { return p[40] }

// SetTrafficClass sets the traffic class.
func (p Path) SetTrafficClass(v uint8) { p[40] = v }

// HopLimit returns the hop limit.
func (p Path) HopLimit() uint8 { return p[41] }

// SetHopLimit sets the hop limit.
func (p Path) SetHopLimit(v uint8) { p[41] = v }

// SL returns the service level.
func (p Path) SL() uint8 { return bits(p[42], 4, 4) }

// SetSL sets the service level.
func (p Path) SetSL(v uint8) { setBits(&p[42], 4, 4, v) }

// SubnetLocal returns whether the path stays in the subnet.
func (p Path) SubnetLocal() bool { return bits(p[42], 3, 1) != 0 }

// SetSubnetLocal sets whether the path stays in the subnet.
func (p Path) SetSubnetLocal(v bool) { setFlag(&p[42], 3, v) }

// LocalACKTimeout returns the ACK timeout of the sender's queue pair: 4.096 us to the power of two.
func (p Path) LocalACKTimeout() uint8 { return bits(p[43], 3, 5) }

// SetLocalACKTimeout sets the ACK timeout of the sender's queue pair.
func (p Path) SetLocalACKTimeout(v uint8) { setBits(&p[43], 3, 5, v) }

// SAPSupported returns whether a suggested alternate path would be taken; of the alternate path only.
func (p Path) SAPSupported() bool { return bits(p[43], 2, 1) != 0 }

// SetSAPSupported sets whether a suggested alternate path would be taken.
func (p Path) SetSAPSupported(v bool) { setFlag(&p[43], 2, v) }
