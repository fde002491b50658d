package roce

import "errors"

// What Parse finds wrong with a packet. These are counted, never shown to an application.
var (
	ErrShort   = errors.New("roce: packet shorter than its headers")
	ErrVersion = errors.New("roce: transport version is not 0")
	ErrOpcode  = errors.New("roce: unknown opcode")
	ErrPad     = errors.New("roce: length or pad count do not fit")
)

// Packet is a parsed UDP payload. All slices alias B: they live as long as the receive buffer does, and whoever keeps payload
// longer must copy it.
type Packet struct {
	B       []byte // whole UDP payload, from the BTH to the ICRC
	Op      Opcode
	Info    *OpInfo
	Payload []byte // between the headers and the pad bytes
	BTH     BTH
}

// Parse cuts the UDP payload b into p. It checks length, version, opcode and pad count, so that no view of p goes out of bounds;
// it does not check the ICRC, nor whether payload is allowed or has the right length, which the responder answers with a NAK.
//
// Errors are ErrShort, ErrVersion, ErrOpcode and ErrPad. With all but ErrShort, p.BTH, p.Op and p.Info are set, for counters
// and for a NAK of an unknown opcode; p.Payload is nil then.
func Parse(b []byte, p *Packet) error {
	*p = Packet{}
	if len(b) < BTHLen+ICRCLen {
		return ErrShort
	}
	h := BTH(b[:BTHLen:BTHLen])
	op := h.Opcode()
	info := op.Info()
	if h.TVer() == 0 && info.Valid && len(b) < info.HdrLen+ICRCLen {
		return ErrShort
	}
	p.B, p.BTH, p.Op, p.Info = b, h, op, info
	if h.TVer() != 0 {
		return ErrVersion
	}
	if !info.Valid {
		return ErrOpcode
	}
	end := len(b) - ICRCLen - h.PadCount()
	if end < info.HdrLen || len(b)&3 != 0 {
		return ErrPad
	}
	p.Payload = b[info.HdrLen:end:end]
	return nil
}

func (p *Packet) view(off uint8, n int) []byte {
	if off == 0 {
		return nil
	}
	return p.B[off : int(off)+n : int(off)+n]
}

// RETH returns the RDMA header, or nil if the opcode has none. Views alias the packet.
func (p *Packet) RETH() RETH { return p.view(p.Info.RETH, RETHLen) }

// AETH returns the acknowledge header, or nil if the opcode has none.
func (p *Packet) AETH() AETH { return p.view(p.Info.AETH, AETHLen) }

// DETH returns the datagram header, or nil if the opcode has none.
func (p *Packet) DETH() DETH { return p.view(p.Info.DETH, DETHLen) }

// AtomicETH returns the atomic request header, or nil if the opcode has none.
func (p *Packet) AtomicETH() AtomicETH { return p.view(p.Info.AtomicETH, AtomicETHLen) }

// AtomicAckETH returns the atomic response header, or nil if the opcode has none.
func (p *Packet) AtomicAckETH() AtomicAckETH { return p.view(p.Info.AtomicAck, AtomicAckETHLen) }

// ImmDt returns the immediate data, or nil if the opcode has none.
func (p *Packet) ImmDt() ImmDt { return p.view(p.Info.Imm, ImmDtLen) }

// IETH returns the invalidate header, or nil if the opcode has none.
func (p *Packet) IETH() IETH { return p.view(p.Info.IETH, IETHLen) }

// XRCETH returns the XRC header, or nil if the opcode has none.
func (p *Packet) XRCETH() XRCETH { return p.view(p.Info.XRCETH, XRCETHLen) }

// FETH returns the flush header, or nil if the opcode has none.
func (p *Packet) FETH() FETH { return p.view(p.Info.FETH, FETHLen) }
