package cm

import (
	"net/netip"
	"strconv"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// Lengths of private data in bytes.
const (
	REQPrivateLen     = 92 // with rdma_cm's header 36 less
	REPPrivateLen     = 196
	REJPrivateLen     = 148
	RTUPrivateLen     = 224
	MRAPrivateLen     = 222
	DREQPrivateLen    = 220
	DREPPrivateLen    = 224
	SIDRREQPrivateLen = 216 // with rdma_cm's header 36 less
	SIDRREPPrivateLen = 136
	ARILen            = 72
)

// ECE is what enhanced connection establishment exchanges: a vendor (24 bits) and its options. Zero is none.
type ECE struct {
	VendorID, Options uint32
}

// Path is what REQ says of the way between the two ports, besides their addresses.
type Path struct {
	FlowLabel    uint32 // 20 bits
	TrafficClass uint8
	HopLimit     uint8 // 0 is 64
	SL           uint8 // 4 bits
	PacketRate   uint8 // code, 6 bits; 0 is the port's
}

// REQParams are the parameters of Connect. Private data is copied.
type REQParams struct {
	Local, Remote netip.Addr // addresses of the ports; the GIDs are theirs
	Path          Path

	ServiceID         uint64
	Transport         mad.TransportService
	ExtendedTransport uint8 // mad.ExtendedXRC if Transport is mad.TransportExtended

	QPN         uint32
	QKey        uint32
	SRQ         bool
	StartingPSN uint32 // of our receive queue: where the peer begins to send
	PathMTU     ib.MTU
	PKey        uint16 // 0 is 0xFFFF

	ResponderResources uint8 // READs and atomics that we can serve
	InitiatorDepth     uint8 // READs and atomics that we will have outstanding
	FlowControl        bool
	RetryCount         uint8 // more than 7 is 7, as in rdma_cm
	RNRRetryCount      uint8 // how often the peer tries again; more than 7 is 7

	PacketLifetime          uint8 // code; 0 is 16. An ACK timeout that the application wants is it plus 1
	RemoteCMResponseTimeout uint8 // code; 0 is 20
	LocalCMResponseTimeout  uint8 // code; 0 is 20
	MaxCMRetries            int   // 0 is 15, less than 0 is none

	ECE         ECE
	IPHeader    bool   // put rdma_cm's header before the private data: all port spaces but AF_IB's
	SrcPort     uint16 // for the header
	PrivateData []byte // up to 92 bytes, 56 with the header
}

// REPParams are the parameters of Accept.
type REPParams struct {
	QPN         uint32 // of the queue pair; for XRC the target
	QKey        uint32
	SRQ         bool
	StartingPSN uint32

	ResponderResources uint8 // READs and atomics that we will serve
	InitiatorDepth     uint8 // READs and atomics that we will have outstanding
	FlowControl        bool
	RNRRetryCount      uint8 // how often the peer tries again; more than 7 is 7

	ECE         ECE
	PrivateData []byte // up to 196 bytes
}

// SIDRREQParams are the parameters of SIDRRequest.
type SIDRREQParams struct {
	Local, Remote netip.Addr
	TrafficClass  uint8
	ServiceID     uint64
	PKey          uint16 // 0 is 0xFFFF
	Timeout       uint8  // code; 0 is 20
	MaxCMRetries  int    // 0 is 15, less than 0 is none
	ECE           ECE    // only the options travel
	IPHeader      bool
	SrcPort       uint16
	PrivateData   []byte // up to 216 bytes, 180 with the header
}

// SIDRREPParams are the parameters of SIDRReply.
type SIDRREPParams struct {
	Status      mad.SIDRStatus
	QPN, QKey   uint32
	ECE         ECE    // of the vendor only 16 bits travel, as with Linux
	Info        []byte // up to 72 bytes
	PrivateData []byte // up to 136 bytes
}

func tooLong(what string, n, most int) error {
	if n <= most {
		return nil
	}
	return &ib.ParamError{Param: what, Value: strconv.Itoa(n) + " bytes long", Want: "at most " + strconv.Itoa(most)}
}

func not24(what string, v uint32) error {
	if v>>24 == 0 {
		return nil
	}
	return &ib.ParamError{Param: what, Value: strconv.FormatUint(uint64(v), 10), Want: "24 bits"}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func checkAddrs(local, remote netip.Addr) error {
	bad := func(what string, a netip.Addr) error {
		return &ib.ParamError{Param: what, Value: a.String(), Want: "a unicast address, both of one family"}
	}
	switch local, remote := local.Unmap(), remote.Unmap(); {
	case !local.IsValid() || local.IsUnspecified() || local.IsMulticast():
		return bad("Local", local)
	case !remote.IsValid() || remote.IsUnspecified() || remote.IsMulticast() || local.Is4() != remote.Is4():
		return bad("Remote", remote)
	}
	return nil
}

func privateMax(field int, header bool) int {
	if header {
		return field - mad.IPHeaderLen
	}
	return field
}

func (p *REQParams) check() error {
	var service error
	if p.Transport > mad.TransportExtended || p.Transport == mad.TransportRD ||
		p.Transport == mad.TransportExtended && p.ExtendedTransport != mad.ExtendedXRC {
		service = &ib.ParamError{Param: "Transport", Value: p.Transport.String(), Want: "RC, UC or XRC"}
	}
	var mtu error
	if p.PathMTU < ib.MTU256 || p.PathMTU > ib.MTU4096 {
		mtu = &ib.ParamError{Param: "PathMTU", Value: strconv.Itoa(int(p.PathMTU)), Want: "1 to 5"}
	}
	return firstError(
		checkAddrs(p.Local, p.Remote), service, mtu,
		not24("QPN", p.QPN), not24("StartingPSN", p.StartingPSN), not24("ECE.VendorID", p.ECE.VendorID),
		tooLong("PrivateData", len(p.PrivateData), privateMax(REQPrivateLen, p.IPHeader)),
	)
}

func (p *REPParams) check() error {
	return firstError(
		not24("QPN", p.QPN), not24("StartingPSN", p.StartingPSN), not24("ECE.VendorID", p.ECE.VendorID),
		tooLong("PrivateData", len(p.PrivateData), REPPrivateLen),
	)
}

func (p *SIDRREQParams) check() error {
	return firstError(
		checkAddrs(p.Local, p.Remote),
		tooLong("PrivateData", len(p.PrivateData), privateMax(SIDRREQPrivateLen, p.IPHeader)),
	)
}

func (p *SIDRREPParams) check() error {
	return firstError(
		not24("QPN", p.QPN), not24("ECE.VendorID", p.ECE.VendorID),
		tooLong("Info", len(p.Info), ARILen), tooLong("PrivateData", len(p.PrivateData), SIDRREPPrivateLen),
	)
}

// Peer is what a REQ, REP, SIDR_REQ or SIDR_REP says, as its receiver wants it; what the message does not have is zero.
type Peer struct {
	Attr              mad.AttrID // which message it was
	ServiceID         uint64
	Transport         mad.TransportService
	ExtendedTransport uint8
	CAGUID            uint64

	QPN         uint32
	QKey        uint32
	SRQ         bool
	StartingPSN uint32 // where our send queue begins
	PathMTU     ib.MTU
	PKey        uint16

	// Swapped, as rdma_cm's events have them: ResponderResources is how many READs and atomics the peer will have outstanding
	// (what we have to serve), InitiatorDepth how many it can serve.
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        bool
	RetryCount         uint8 // REQ: for our queue pair
	RNRRetryCount      uint8 // for our queue pair
	ACKTimeout         uint8 // for our queue pair: REQ's, or reckoned with REP's target ACK delay

	LocalGID, RemoteGID ib.GID // REQ: ours (its primary remote GID) and the peer's
	Path                Path
	AlternatePath       bool // REQ has one; it is not used

	SIDRStatus mad.SIDRStatus
	ECE        ECE
}

// IPInfo is rdma_cm's header.
type IPInfo struct {
	Src, Dst netip.Addr
	SrcPort  uint16
}

// SplitPrivate takes the private data of a REQ or SIDR_REQ of an IP service id apart: rdma_cm's header and what its user gave,
// which aliases private. EINVAL: no such header (its versions must be 0, and 4 or 6).
func SplitPrivate(private []byte) (IPInfo, []byte, error) {
	if len(private) < mad.IPHeaderLen {
		return IPInfo{}, nil, &ib.ParamError{Param: "private data", Value: strconv.Itoa(len(private)) + " bytes long", Want: "at least 36"}
	}
	h := mad.IPHeader(private[:mad.IPHeaderLen:mad.IPHeaderLen])
	if h.Version() != 0 {
		return IPInfo{}, nil, &ib.ParamError{Param: "version of rdma_cm's header", Value: strconv.Itoa(int(h.Version())), Want: "0"}
	}
	if v := h.IPVersion(); v != 4 && v != 6 {
		return IPInfo{}, nil, &ib.ParamError{Param: "IP version of rdma_cm's header", Value: strconv.Itoa(int(v)), Want: "4 or 6"}
	}
	return IPInfo{Src: h.Src(), Dst: h.Dst(), SrcPort: h.SrcPort()}, private[mad.IPHeaderLen:], nil
}
