package layers

import (
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

const gsiQPN = mad.QPN

// MADAttr is the attribute of a management datagram: in connection management
// the message.
type MADAttr uint16

// Messages of connection management.
const (
	MADAttrREQ     = MADAttr(mad.AttrREQ)
	MADAttrMRA     = MADAttr(mad.AttrMRA)
	MADAttrREJ     = MADAttr(mad.AttrREJ)
	MADAttrREP     = MADAttr(mad.AttrREP)
	MADAttrRTU     = MADAttr(mad.AttrRTU)
	MADAttrDREQ    = MADAttr(mad.AttrDREQ)
	MADAttrDREP    = MADAttr(mad.AttrDREP)
	MADAttrSIDRREQ = MADAttr(mad.AttrSIDRREQ)
	MADAttrSIDRREP = MADAttr(mad.AttrSIDRREP)
	MADAttrLAP     = MADAttr(mad.AttrLAP)
	MADAttrAPR     = MADAttr(mad.AttrAPR)
)

// String returns the name of the message of connection management.
func (a MADAttr) String() string { return mad.AttrID(a).String() }

// CMRejectReason says why a message was rejected.
type CMRejectReason uint16

// String says the reason in words.
func (r CMRejectReason) String() string { return mad.RejectReason(r).String() }

// CMSIDRStatus is the status of a SIDR_REP, 0 is ok.
type CMSIDRStatus uint8

// String says the status in words.
func (s CMSIDRStatus) String() string { return mad.SIDRStatus(s).String() }

// CMTransport is the service of a connection: RC, UC, RD or extended (XRC).
type CMTransport uint8

// String names the service.
func (t CMTransport) String() string { return mad.TransportService(t).String() }

// CMMessageKind says which message an MRA or REJ answers: 0 is REQ, 1 REP.
type CMMessageKind uint8

// String names the message.
func (k CMMessageKind) String() string { return mad.MessageKind(k).String() }

// MAD is the header of a management datagram (IBA 13.4.3). It is the payload of UD
// SEND_ONLY packets to queue pair 1.
type MAD struct {
	layers.BaseLayer
	extension
	BaseVersion   uint8  // 1
	Class         uint8  // 7 is connection management
	ClassVersion  uint8  // 2 for connection management
	Method        uint8  // 3 for connection management
	Status        uint16 // 0
	ClassSpecific uint16 // 0
	TID           uint64 // transaction id
	Attr          MADAttr
	Reserved      uint16 // 0
	AttrMod       uint32 // in REQ, REP and SIDR_REP the options of enhanced connection establishment
}

// LayerType implements gopacket.Layer.
func (h *MAD) LayerType() gopacket.LayerType { return LayerTypeMAD }

// CanDecode implements gopacket.DecodingLayer.
func (h *MAD) CanDecode() gopacket.LayerClass { return LayerTypeMAD }

// DecodeFromBytes implements gopacket.DecodingLayer.
func (h *MAD) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := need(data, mad.HeaderLen, df); err != nil {
		return err
	}
	v := mad.Header(data)
	*h = MAD{
		BaseLayer:   cut(data, mad.HeaderLen),
		BaseVersion: v.BaseVersion(), Class: v.Class(), ClassVersion: v.ClassVersion(), Method: v.Method(), Status: v.Status(),
		ClassSpecific: v.ClassSpecific(), TID: v.TID(), Attr: MADAttr(v.AttrID()), Reserved: uint16(data[18])<<8 | uint16(data[19]),
		AttrMod: v.AttrMod(),
	}
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *MAD) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, mad.HeaderLen)
	if err != nil {
		return err
	}
	v := mad.Header(d)
	v.SetBaseVersion(h.BaseVersion)
	v.SetClass(h.Class)
	v.SetClassVersion(h.ClassVersion)
	v.SetMethod(h.Method)
	v.SetStatus(h.Status)
	v.SetClassSpecific(h.ClassSpecific)
	v.SetTID(h.TID)
	v.SetAttrID(mad.AttrID(h.Attr))
	d[18], d[19] = byte(h.Reserved>>8), byte(h.Reserved)
	v.SetAttrMod(h.AttrMod)
	return nil
}

// message is a message of connection management.
type message interface {
	gopacket.DecodingLayer
	gopacket.Layer
}

// messageOf makes the layer of a message, nil if there is none.
func messageOf(a MADAttr) message {
	switch a {
	case MADAttrREQ:
		return new(CMREQ)
	case MADAttrMRA:
		return new(CMMRA)
	case MADAttrREJ:
		return new(CMREJ)
	case MADAttrREP:
		return new(CMREP)
	case MADAttrRTU:
		return new(CMRTU)
	case MADAttrDREQ:
		return new(CMDREQ)
	case MADAttrDREP:
		return new(CMDREP)
	case MADAttrSIDRREQ:
		return new(CMSIDRREQ)
	case MADAttrSIDRREP:
		return new(CMSIDRREP)
	case MADAttrLAP:
		return new(CMLAP)
	case MADAttrAPR:
		return new(CMAPR)
	}
	return nil
}

// decodeMAD decodes a management datagram, and what it carries if that is
// connection management.
func decodeMAD(data []byte, p gopacket.PacketBuilder) error {
	h := new(MAD)
	if err := h.DecodeFromBytes(data, p); err != nil {
		return err
	}
	var m message
	if h.BaseVersion == mad.BaseVersion && h.Class == mad.ClassCM && h.ClassVersion == mad.ClassVersionCM && h.Method == mad.MethodSend {
		m = messageOf(h.Attr)
	}
	if m == nil {
		p.AddLayer(h)
		addPayload(p, h.Payload)
		return nil
	}
	h.follow(m.LayerType())
	p.AddLayer(h)
	if err := m.DecodeFromBytes(h.Payload, p); err != nil {
		return err
	}
	p.AddLayer(m)
	var private []byte
	switch m := m.(type) {
	case *CMREQ:
		private = ipcm(m.ServiceID, m.PrivateData)
	case *CMSIDRREQ:
		private = ipcm(m.ServiceID, m.PrivateData)
	}
	if private != nil {
		c := new(IPCM)
		if err := c.DecodeFromBytes(private, p); err != nil {
			return err
		}
		p.AddLayer(c)
	}
	addPayload(p, h.Payload[mad.DataLen:]) // more than a management datagram has
	return nil
}

func addPayload(p gopacket.PacketBuilder, b []byte) {
	if len(b) > 0 {
		pl := gopacket.Payload(b)
		p.AddLayer(&pl)
		p.SetApplicationLayer(&pl)
	}
}

// ipcm returns the private data if it begins with rdma_cm's header: the service id
// is one of rdma_cm's, and the version and unused bits are what they are there.
func ipcm(id uint64, private []byte) []byte {
	space, _, ok := mad.SplitServiceID(id)
	if !ok || space == mad.PortSpaceIPoIB || private[0] != 0 || private[1] != 0x40 && private[1] != 0x60 {
		return nil
	}
	return private
}

// cmData cuts a message of connection management.
func cmData(data []byte, df gopacket.DecodeFeedback) ([]byte, error) {
	if err := need(data, mad.DataLen, df); err != nil {
		return nil, err
	}
	return data[:mad.DataLen:mad.DataLen], nil
}

// IPCM is what rdma_cm puts before its users' private data in REQ and SIDR_REQ. In
// a decoded packet its bytes are also in the message's PrivateData; to build one,
// put Bytes there.
type IPCM struct {
	layers.BaseLayer            // the payload is the user's private data
	Version          uint8      // major and minor, 0
	IPVersion        uint8      // 4 or 6
	SrcPort          uint16     // of the sender's rdma_cm id
	Src, Dst         netip.Addr // sender, receiver
}

// LayerType implements gopacket.Layer.
func (h *IPCM) LayerType() gopacket.LayerType { return LayerTypeIPCM }

// CanDecode implements gopacket.DecodingLayer.
func (h *IPCM) CanDecode() gopacket.LayerClass { return LayerTypeIPCM }

// NextLayerType implements gopacket.DecodingLayer.
func (h *IPCM) NextLayerType() gopacket.LayerType { return gopacket.LayerTypePayload }

// DecodeFromBytes implements gopacket.DecodingLayer.
func (h *IPCM) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := need(data, mad.IPHeaderLen, df); err != nil {
		return err
	}
	v := mad.IPHeader(data)
	*h = IPCM{
		BaseLayer: cut(data, mad.IPHeaderLen),
		Version:   v.Version(), IPVersion: v.IPVersion(), SrcPort: v.SrcPort(), Src: v.Src(), Dst: v.Dst(),
	}
	return nil
}

// Bytes returns the 36 bytes of the header with data behind it.
func (h *IPCM) Bytes(data []byte) []byte {
	b := make([]byte, mad.IPHeaderLen, mad.IPHeaderLen+len(data))
	v := mad.IPHeader(b)
	v.Put(h.Src, h.Dst, h.SrcPort)
	v.SetVersion(h.Version)
	v.SetIPVersion(h.IPVersion)
	return append(b, data...)
}
