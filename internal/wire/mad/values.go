package mad

import "strconv"

// TransportService is the service of a connection, two bits of a REQ.
type TransportService uint8

// Transport services.
const (
	TransportRC       TransportService = 0
	TransportUC       TransportService = 1
	TransportRD       TransportService = 2
	TransportExtended TransportService = 3 // see REQ.ExtendedTransport
)

// ExtendedXRC is the extended transport of XRC.
const ExtendedXRC = 1

// String returns RC, UC, RD or Extended.
func (t TransportService) String() string { return [...]string{"RC", "UC", "RD", "Extended"}[t&3] }

// MessageKind says which message an MRA or REJ answers, two bits.
type MessageKind uint8

// Kinds of messages.
const (
	MessageREQ   MessageKind = 0
	MessageREP   MessageKind = 1
	MessageOther MessageKind = 2 // MRA: LAP; REJ: none of the others
)

// String names the kind.
func (k MessageKind) String() string { return [...]string{"REQ", "REP", "other", "reserved"}[k&3] }

// RejectReason says why a message was rejected (IBA 12.6.7.2).
type RejectReason uint16

// Reasons of a reject.
const (
	RejectNoQP               RejectReason = 1
	RejectNoEEC              RejectReason = 2
	RejectNoResources        RejectReason = 3
	RejectTimeout            RejectReason = 4 // ARI: the CA GUID of the sender
	RejectUnsupported        RejectReason = 5
	RejectBadCommID          RejectReason = 6
	RejectBadCommInstance    RejectReason = 7
	RejectBadServiceID       RejectReason = 8
	RejectBadTransport       RejectReason = 9
	RejectStaleConnection    RejectReason = 10
	RejectNoRDC              RejectReason = 11
	RejectBadGID             RejectReason = 12 // ARI: a GID that would do
	RejectBadLID             RejectReason = 13
	RejectBadSL              RejectReason = 14
	RejectBadTrafficClass    RejectReason = 15
	RejectBadHopLimit        RejectReason = 16
	RejectBadPacketRate      RejectReason = 17
	RejectBadAltGID          RejectReason = 18
	RejectBadAltLID          RejectReason = 19
	RejectBadAltSL           RejectReason = 20
	RejectBadAltTrafficClass RejectReason = 21
	RejectBadAltHopLimit     RejectReason = 22
	RejectBadAltPacketRate   RejectReason = 23
	RejectPortCMRedirect     RejectReason = 24
	RejectPortRedirect       RejectReason = 25
	RejectBadMTU             RejectReason = 26
	RejectFewResources       RejectReason = 27 // responder resources do not suffice
	RejectConsumer           RejectReason = 28 // the application's decision
	RejectBadRNRRetry        RejectReason = 29
	RejectDuplicateCommID    RejectReason = 30
	RejectBadClassVersion    RejectReason = 31
	RejectBadFlowLabel       RejectReason = 32
	RejectBadAltFlowLabel    RejectReason = 33
	RejectVendorOption       RejectReason = 35 // enhanced connection establishment: option not supported
)

// String says the reason in words.
func (r RejectReason) String() string {
	names := [...]string{
		1: "no queue pair", 2: "no end-to-end context", 3: "no resources", 4: "timeout", 5: "unsupported request",
		6: "bad communication id", 7: "bad communication instance", 8: "bad service id", 9: "bad transport type",
		10: "stale connection", 11: "no reliable datagram channel", 12: "bad GID", 13: "bad LID", 14: "bad service level",
		15: "bad traffic class", 16: "bad hop limit", 17: "bad packet rate", 18: "bad alternate GID", 19: "bad alternate LID",
		20: "bad alternate service level", 21: "bad alternate traffic class", 22: "bad alternate hop limit",
		23: "bad alternate packet rate", 24: "port and CM redirect", 25: "port redirect", 26: "bad MTU",
		27: "insufficient responder resources", 28: "consumer reject", 29: "bad RNR retry count",
		30: "duplicate communication id", 31: "bad class version", 32: "bad flow label", 33: "bad alternate flow label",
		35: "vendor option not supported",
	}
	if int(r) < len(names) && names[r] != "" {
		return names[r]
	}
	return "RejectReason(" + strconv.Itoa(int(r)) + ")"
}

// SIDRStatus is the status of a SIDR_REP.
type SIDRStatus uint8

// Statuses of a SIDR_REP.
const (
	SIDROK                 SIDRStatus = 0
	SIDRBadServiceID       SIDRStatus = 1
	SIDRRejected           SIDRStatus = 2
	SIDRNoQP               SIDRStatus = 3
	SIDRRedirect           SIDRStatus = 4
	SIDRUnsupportedVersion SIDRStatus = 5
)

// String says the status in words.
func (s SIDRStatus) String() string {
	names := [...]string{"ok", "service id unsupported", "rejected", "no queue pair", "redirect", "unsupported version"}
	if int(s) < len(names) {
		return names[s]
	}
	return "SIDRStatus(" + strconv.Itoa(int(s)) + ")"
}
