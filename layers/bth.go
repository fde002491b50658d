package layers

import (
	"encoding/binary"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/verbena-rdma/verbena/internal/psn"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// Opcode is the operation code of a BTH.
type Opcode uint8

// String returns the standard's spelling, for instance RC_RDMA_WRITE_FIRST.
func (o Opcode) String() string { return roce.Opcode(o).String() }

// Syndrome is what a responder says in an AETH.
type Syndrome uint8

// String names it: ACK, RNR_NAK, or which NAK.
func (s Syndrome) String() string { return roce.Syndrome(s).String() }

// BTH is the Base Transport Header (IBA 9.2), the first of every RoCE packet.
type BTH struct {
	layers.BaseLayer
	extension
	Opcode         Opcode
	SolicitedEvent bool
	MigReq         bool
	PadCount       uint8 // bytes between payload and ICRC, 0..3
	TVer           uint8 // transport version, 0
	PKey           uint16
	FECN, BECN     bool
	Reserved6      uint8  // 6 bits, 0
	DestQP         uint32 // 24 bits
	AckReq         bool
	Reserved7      uint8  // 7 bits, 0
	PSN            uint32 // 24 bits
}

// LayerType implements gopacket.Layer.
func (h *BTH) LayerType() gopacket.LayerType { return LayerTypeBTH }

// CanDecode implements gopacket.DecodingLayer.
func (h *BTH) CanDecode() gopacket.LayerClass { return LayerTypeBTH }

// DecodeFromBytes implements gopacket.DecodingLayer.
func (h *BTH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := need(data, roce.BTHLen, df); err != nil {
		return err
	}
	v := roce.BTH(data)
	*h = BTH{
		BaseLayer: cut(data, roce.BTHLen),
		Opcode:    Opcode(v.Opcode()), SolicitedEvent: v.SE(), MigReq: v.MigReq(), PadCount: uint8(v.PadCount()), TVer: v.TVer(),
		PKey: v.PKey(), FECN: v.FECN(), BECN: v.BECN(), Reserved6: data[4] & 0x3F, DestQP: v.DestQP(),
		AckReq: v.AckReq(), Reserved7: data[8] & 0x7F, PSN: uint32(v.PSN()),
	}
	return nil
}

// SerializeTo implements gopacket.SerializableLayer. PadCount is written as it is:
// it is that of the ICRC layer's Pad.
func (h *BTH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, roce.BTHLen)
	if err != nil {
		return err
	}
	v := roce.BTH(d)
	v.Put(roce.Opcode(h.Opcode), h.SolicitedEvent, int(h.PadCount), h.PKey, h.DestQP, h.AckReq, psn.PSN(h.PSN))
	v.SetMigReq(h.MigReq)
	v.SetTVer(h.TVer)
	d[4] = h.Reserved6 & 0x3F
	v.SetFECN(h.FECN)
	v.SetBECN(h.BECN)
	d[8] |= h.Reserved7 & 0x7F
	return nil
}

// extension is what the headers share: who comes next, if the opcode was known
// when it was decoded.
type extension struct{ next gopacket.LayerType }

// NextLayerType implements gopacket.DecodingLayer.
func (e *extension) NextLayerType() gopacket.LayerType {
	if e.next == gopacket.LayerTypeZero {
		return gopacket.LayerTypePayload
	}
	return e.next
}

func (e *extension) follow(t gopacket.LayerType) { e.next = t }

// header is an extension header.
type header interface {
	gopacket.DecodingLayer
	gopacket.Layer
	follow(gopacket.LayerType)
}

// headersOf makes the extension headers of an opcode, in the order of the wire.
func headersOf(o Opcode) []header {
	op := roce.Opcode(o)
	if op == roce.OpCNP {
		return []header{new(CNP)}
	}
	var list []header
	if op.Transport() == roce.TransportRD {
		// Nobody implements reliable datagrams; the headers are those of the reliable connection behind two more.
		list = append(list, new(RDETH))
		if op.Info().Flags.Any(roce.FlagRequest) {
			list = append(list, new(DETH))
		}
		if op = roce.MakeOpcode(roce.TransportRC, op.Operation()); !op.Info().Valid {
			return list
		}
	}
	inf := op.Info()
	type placed struct {
		at uint8
		h  header
	}
	var all []placed
	for _, x := range []placed{
		{inf.RETH, new(RETH)},
		{inf.AETH, new(AETH)},
		{inf.DETH, new(DETH)},
		{inf.AtomicETH, new(AtomicETH)},
		{inf.AtomicAck, new(AtomicAckETH)},
		{inf.Imm, new(ImmDt)},
		{inf.IETH, new(IETH)},
		{inf.XRCETH, new(XRCETH)},
		{inf.FETH, new(FETH)},
	} {
		if x.at != 0 {
			all = append(all, x)
		}
	}
	slices.SortFunc(all, func(a, b placed) int { return int(a.at) - int(b.at) })
	for _, x := range all {
		list = append(list, x.h)
	}
	return list
}

// truncated reports whether the packet was captured in part.
func truncated(p gopacket.PacketBuilder) bool {
	m, ok := p.(interface {
		Metadata() *gopacket.PacketMetadata
	})
	return ok && m.Metadata().Truncated
}

// decodeBTH decodes a whole UDP payload.
func decodeBTH(data []byte, p gopacket.PacketBuilder) error {
	bth := new(BTH)
	if err := bth.DecodeFromBytes(data, p); err != nil {
		return err
	}
	whole := !truncated(p)
	body, trailer := data[roce.BTHLen:], 0
	if whole {
		if trailer = roce.ICRCLen + int(bth.PadCount); len(body) < trailer {
			p.AddLayer(bth)
			p.SetTruncated()
			return errShort
		}
	}
	list := headersOf(bth.Opcode)
	last := header(bth)
	for _, h := range list {
		last.follow(h.LayerType())
		p.AddLayer(last)
		if err := h.DecodeFromBytes(body[:len(body)-trailer], p); err != nil {
			return err
		}
		body = body[len(h.LayerContents()):]
		last = h
	}
	p.AddLayer(last)

	payload := body[:len(body)-trailer]
	if roce.Opcode(bth.Opcode) == roce.OpUDSendOnly && bth.DestQP == gsiQPN && len(payload) > 0 {
		last.follow(LayerTypeMAD)
		if err := decodeMAD(payload, p); err != nil {
			return err
		}
	} else {
		addPayload(p, payload)
	}
	if whole {
		c := new(ICRC)
		if err := c.DecodeFromBytes(body[len(payload):], p); err != nil {
			return err
		}
		p.AddLayer(c)
	}
	return nil
}

// FETH is the Flush Extended Transport Header, before the RETH of a FLUSH.
type FETH struct {
	layers.BaseLayer
	extension
	Reserved    uint32 // the upper 26 bits, 0
	Selectivity uint8  // 0: the range in the RETH, 1: the whole memory region; 2 bits
	Placement   uint8  // bit 0: global visibility, bit 1: persistence; 4 bits
}

// LayerType implements gopacket.Layer.
func (h *FETH) LayerType() gopacket.LayerType { return LayerTypeFETH }

// CanDecode implements gopacket.DecodingLayer.
func (h *FETH) CanDecode() gopacket.LayerClass { return LayerTypeFETH }

// DecodeFromBytes implements gopacket.DecodingLayer.
func (h *FETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := need(data, roce.FETHLen, df); err != nil {
		return err
	}
	h.BaseLayer = cut(data, roce.FETHLen)
	h.Reserved = binary.BigEndian.Uint32(data) >> 6
	h.Selectivity, h.Placement = roce.FETH(data).Selectivity(), roce.FETH(data).Placement()
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *FETH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, roce.FETHLen)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(d, h.Reserved<<6|uint32(h.Selectivity&3)<<4|uint32(h.Placement&0xF))
	return nil
}

// cnpLen is the number of reserved bytes behind the BTH of a CNP.
const cnpLen = 16

// CNP is what a congestion notification packet has behind its BTH (IBA A17).
type CNP struct {
	layers.BaseLayer
	extension
	Reserved [cnpLen]byte // 0
}

// LayerType implements gopacket.Layer.
func (h *CNP) LayerType() gopacket.LayerType { return LayerTypeCNP }

// CanDecode implements gopacket.DecodingLayer.
func (h *CNP) CanDecode() gopacket.LayerClass { return LayerTypeCNP }

// DecodeFromBytes implements gopacket.DecodingLayer.
func (h *CNP) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := need(data, cnpLen, df); err != nil {
		return err
	}
	h.BaseLayer = cut(data, cnpLen)
	copy(h.Reserved[:], data)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *CNP) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, cnpLen)
	if err != nil {
		return err
	}
	copy(d, h.Reserved[:])
	return nil
}
