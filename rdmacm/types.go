package rdmacm

import (
	"fmt"

	"github.com/verbena-rdma/verbena/ib"
)

// PortSpace is the space in which an ID's port is a number (enum rdma_port_space).
// Equal ports of different spaces have nothing to do with each other.
type PortSpace uint16

// Port spaces.
const (
	PSIPoIB PortSpace = 0x0002 // datagrams; on RoCE as PSUDP
	PSTCP   PortSpace = 0x0106 // connections
	PSUDP   PortSpace = 0x0111 // datagrams
	PSIB    PortSpace = 0x013F // any type of queue pair, see Manager.NewIDType
)

// String is the name of the constant in C.
func (p PortSpace) String() string {
	switch p {
	case PSIPoIB:
		return "RDMA_PS_IPOIB"
	case PSTCP:
		return "RDMA_PS_TCP"
	case PSUDP:
		return "RDMA_PS_UDP"
	case PSIB:
		return "RDMA_PS_IB"
	}
	return fmt.Sprintf("PortSpace(%#x)", uint16(p))
}

// EventType is what an [Event] tells (enum rdma_cm_event_type).
type EventType uint8

// Events, with the meaning of Status where it is not 0.
const (
	EventAddrResolved    EventType = iota // ResolveAddr has succeeded
	EventAddrError                        // ResolveAddr has failed, or the peer's Q_Key is another one: negative errno
	EventRouteResolved                    // ResolveRoute has succeeded
	EventRouteError                       // ResolveRoute has failed: negative errno
	EventConnectRequest                   // somebody wants to connect: Event.ID is a new ID, ListenID the one that listens
	EventConnectResponse                  // the peer has accepted and the ID has no queue pair: call Establish
	EventConnectError                     // a local failure after the peer had accepted: negative errno
	EventUnreachable                      // no answer: -ETIMEDOUT; or the status of a datagram lookup that was refused, above 0
	EventRejected                         // refused: Status is the RejectReason
	EventEstablished                      // connected; for datagrams: the peer is known, active side only
	EventDisconnected                     // the connection is over; -ETIMEDOUT: the peer does not answer
	EventDeviceRemoval                    // the device is gone: destroy the ID
	EventMulticastJoin                    // the group was joined
	EventMulticastError                   // it was not: negative errno
	EventAddrChange                       // the interface has another hardware address; software devices never tell
	EventTimewaitExit                     // packets of the old connection have died out
)

var eventNames = [...]string{
	"ADDR_RESOLVED", "ADDR_ERROR", "ROUTE_RESOLVED", "ROUTE_ERROR", "CONNECT_REQUEST", "CONNECT_RESPONSE", "CONNECT_ERROR", "UNREACHABLE",
	"REJECTED", "ESTABLISHED", "DISCONNECTED", "DEVICE_REMOVAL", "MULTICAST_JOIN", "MULTICAST_ERROR", "ADDR_CHANGE", "TIMEWAIT_EXIT",
}

// String is the event's name (rdma_event_str): "RDMA_CM_EVENT_ADDR_RESOLVED".
func (t EventType) String() string { return EventStr(t) }

// EventStr is the event's name in C (rdma_event_str); "UNKNOWN EVENT" of others.
func EventStr(t EventType) string {
	if int(t) < len(eventNames) {
		return "RDMA_CM_EVENT_" + eventNames[t]
	}
	return "UNKNOWN EVENT"
}

// Lengths of private data in bytes. What a call is given may be shorter; what
// arrives is always of full length, filled up with zeros.
const (
	MaxPrivateConnect         = 56  // Connect of a connection
	MaxPrivateAccept          = 196 // Accept of a connection
	MaxPrivateReject          = 148 // Reject of a connection
	MaxPrivateConnectDatagram = 180 // Connect for datagrams
	MaxPrivateAcceptDatagram  = 136 // Accept and Reject for datagrams
)

// The most a side can do, as ResponderResources and InitiatorDepth in [ConnParam].
const (
	MaxRespRes   = 0xFF // RDMA_MAX_RESP_RES: as many as the device has
	MaxInitDepth = 0xFF // RDMA_MAX_INIT_DEPTH
)

// UDPQKey is the Q_Key of datagram queue pairs and multicast groups
// (RDMA_UDP_QKEY).
const UDPQKey = ib.QKeyRDMAU

// ConnParam are the parameters of a connection (struct rdma_conn_param): given to
// Connect and Accept, and told by events from the peer, where ResponderResources and
// InitiatorDepth are exchanged so that they are about the receiver.
type ConnParam struct {
	PrivateData []byte // copied by calls; of an event valid until Ack
	// ResponderResources is the number of READs and atomics that this side serves
	// at a time, InitiatorDepth that of those that it has under way. MaxRespRes and
	// MaxInitDepth: what the device has, in Accept at most what the peer asked for.
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        bool  // told to the peer, without effect
	RetryCount         uint8 // of sends that are not acknowledged, 0 to 7; ignored by Accept
	RNRRetryCount      uint8 // how often the peer retries sends for which no receive was posted; 7: for ever
	// SRQ and QPNum are of the queue pair, where the ID has none.
	SRQ   bool
	QPNum ib.QPN
}

// UDParam tell of a datagram service or a multicast group (struct rdma_ud_param).
type UDParam struct {
	PrivateData []byte    // valid until Ack
	AHAttr      ib.AHAttr // for verbs.PD.CreateAH
	QPNum       ib.QPN
	QKey        ib.QKey
}

// PathRecord is a route (struct ibv_sa_path_rec, in host byte order). On RoCE the
// GIDs are the addresses, and LIDs say nothing.
type PathRecord struct {
	DGID, SGID     ib.GID
	DLID, SLID     uint16
	FlowLabel      uint32 // 20 bits
	HopLimit       uint8
	TrafficClass   uint8
	Reversible     bool
	PKey           ib.PKey
	SL             uint8
	MTU            ib.MTU
	Rate           ib.Rate
	PacketLifeTime uint8 // 4.096 us to the power of two
}

// JoinFlags say what a member of a multicast group does (enum
// rdma_cm_mc_join_flags).
type JoinFlags uint8

// Join flags.
const (
	JoinFullMember         JoinFlags = 0
	JoinSendOnlyFullMember JoinFlags = 1 // receives nothing
)
