package layers

import (
	"encoding/binary"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// DETH is the Datagram Extended Transport Header of UD and of reliable datagram requests.
type DETH struct {
	layers.BaseLayer
	extension
	QKey     uint32 // queue key
	Reserved uint8  // 0
	SrcQP    uint32 // sender's queue pair, 24 bits
}

// LayerType implements gopacket.Layer.
func (h *DETH) LayerType() gopacket.LayerType { return LayerTypeDETH }

// CanDecode implements gopacket.DecodingLayer.
func (h *DETH) CanDecode() gopacket.LayerClass { return LayerTypeDETH }

// DecodeFromBytes implements gopacket.DecodingLayer.
func (h *DETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := need(data, roce.DETHLen, df); err != nil {
		return err
	}
	h.BaseLayer = cut(data, roce.DETHLen)
	h.QKey = binary.BigEndian.Uint32(data)
	h.Reserved = data[4]
	h.SrcQP = get24(data[5:])
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *DETH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, roce.DETHLen)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(d, h.QKey)
	d[4] = h.Reserved
	put24(d[5:], h.SrcQP)
	return nil
}

// RETH is the RDMA Extended Transport Header of WRITE and READ requests, ATOMIC WRITE and FLUSH.
type RETH struct {
	layers.BaseLayer
	extension
	VA     uint64 // remote virtual address
	RKey   uint32 // remote key
	DMALen uint32 // bytes of the whole message
}

// LayerType implements gopacket.Layer.
func (h *RETH) LayerType() gopacket.LayerType { return LayerTypeRETH }

// CanDecode implements gopacket.DecodingLayer.
func (h *RETH) CanDecode() gopacket.LayerClass { return LayerTypeRETH }

// DecodeFromBytes implements gopacket.DecodingLayer.
func (h *RETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := need(data, roce.RETHLen, df); err != nil {
		return err
	}
	h.BaseLayer = cut(data, roce.RETHLen)
	h.VA = binary.BigEndian.Uint64(data)
	h.RKey = binary.BigEndian.Uint32(data[8:])
	h.DMALen = binary.BigEndian.Uint32(data[12:])
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *RETH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, roce.RETHLen)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint64(d, h.VA)
	binary.BigEndian.PutUint32(d[8:], h.RKey)
	binary.BigEndian.PutUint32(d[12:], h.DMALen)
	return nil
}

// AETH is the ACK Extended Transport Header.
type AETH struct {
	layers.BaseLayer
	extension
	Syndrome Syndrome // ACK with credits, RNR NAK or NAK
	MSN      uint32   // messages that the responder has completed, 24 bits
}

// LayerType implements gopacket.Layer.
func (h *AETH) LayerType() gopacket.LayerType { return LayerTypeAETH }

// CanDecode implements gopacket.DecodingLayer.
func (h *AETH) CanDecode() gopacket.LayerClass { return LayerTypeAETH }

// DecodeFromBytes implements gopacket.DecodingLayer.
func (h *AETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := need(data, roce.AETHLen, df); err != nil {
		return err
	}
	h.BaseLayer = cut(data, roce.AETHLen)
	h.Syndrome = Syndrome(data[0])
	h.MSN = get24(data[1:])
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *AETH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, roce.AETHLen)
	if err != nil {
		return err
	}
	d[0] = byte(h.Syndrome)
	put24(d[1:], h.MSN)
	return nil
}

// AtomicETH is the Atomic Extended Transport Header.
type AtomicETH struct {
	layers.BaseLayer
	extension
	VA      uint64 // remote virtual address
	RKey    uint32 // remote key
	SwapAdd uint64 // new value of a COMPARE_SWAP, addend of a FETCH_ADD
	Compare uint64 // value that a COMPARE_SWAP expects
}

// LayerType implements gopacket.Layer.
func (h *AtomicETH) LayerType() gopacket.LayerType { return LayerTypeAtomicETH }

// CanDecode implements gopacket.DecodingLayer.
func (h *AtomicETH) CanDecode() gopacket.LayerClass { return LayerTypeAtomicETH }

// DecodeFromBytes implements gopacket.DecodingLayer.
func (h *AtomicETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := need(data, roce.AtomicETHLen, df); err != nil {
		return err
	}
	h.BaseLayer = cut(data, roce.AtomicETHLen)
	h.VA = binary.BigEndian.Uint64(data)
	h.RKey = binary.BigEndian.Uint32(data[8:])
	h.SwapAdd = binary.BigEndian.Uint64(data[12:])
	h.Compare = binary.BigEndian.Uint64(data[20:])
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *AtomicETH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, roce.AtomicETHLen)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint64(d, h.VA)
	binary.BigEndian.PutUint32(d[8:], h.RKey)
	binary.BigEndian.PutUint64(d[12:], h.SwapAdd)
	binary.BigEndian.PutUint64(d[20:], h.Compare)
	return nil
}

// AtomicAckETH is the Atomic Acknowledge Extended Transport Header.
type AtomicAckETH struct {
	layers.BaseLayer
	extension
	Original uint64 // value before the operation
}

// LayerType implements gopacket.Layer.
func (h *AtomicAckETH) LayerType() gopacket.LayerType { return LayerTypeAtomicAckETH }

// CanDecode implements gopacket.DecodingLayer.
func (h *AtomicAckETH) CanDecode() gopacket.LayerClass { return LayerTypeAtomicAckETH }

// DecodeFromBytes implements gopacket.DecodingLayer.
func (h *AtomicAckETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := need(data, roce.AtomicAckETHLen, df); err != nil {
		return err
	}
	h.BaseLayer = cut(data, roce.AtomicAckETHLen)
	h.Original = binary.BigEndian.Uint64(data)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *AtomicAckETH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, roce.AtomicAckETHLen)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint64(d, h.Original)
	return nil
}

// ImmDt is immediate data.
type ImmDt struct {
	layers.BaseLayer
	extension
	Data uint32 // immediate data, as a big-endian number
}

// LayerType implements gopacket.Layer.
func (h *ImmDt) LayerType() gopacket.LayerType { return LayerTypeImmDt }

// CanDecode implements gopacket.DecodingLayer.
func (h *ImmDt) CanDecode() gopacket.LayerClass { return LayerTypeImmDt }

// DecodeFromBytes implements gopacket.DecodingLayer.
func (h *ImmDt) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := need(data, roce.ImmDtLen, df); err != nil {
		return err
	}
	h.BaseLayer = cut(data, roce.ImmDtLen)
	h.Data = binary.BigEndian.Uint32(data)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *ImmDt) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, roce.ImmDtLen)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(d, h.Data)
	return nil
}

// IETH is the Invalidate Extended Transport Header.
type IETH struct {
	layers.BaseLayer
	extension
	RKey uint32 // key that the responder invalidates
}

// LayerType implements gopacket.Layer.
func (h *IETH) LayerType() gopacket.LayerType { return LayerTypeIETH }

// CanDecode implements gopacket.DecodingLayer.
func (h *IETH) CanDecode() gopacket.LayerClass { return LayerTypeIETH }

// DecodeFromBytes implements gopacket.DecodingLayer.
func (h *IETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := need(data, roce.IETHLen, df); err != nil {
		return err
	}
	h.BaseLayer = cut(data, roce.IETHLen)
	h.RKey = binary.BigEndian.Uint32(data)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *IETH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, roce.IETHLen)
	if err != nil {
		return err
	}
	binary.BigEndian.PutUint32(d, h.RKey)
	return nil
}

// XRCETH is the XRC Extended Transport Header, in requests.
type XRCETH struct {
	layers.BaseLayer
	extension
	Reserved uint8  // 0
	SRQ      uint32 // shared receive queue, 24 bits
}

// LayerType implements gopacket.Layer.
func (h *XRCETH) LayerType() gopacket.LayerType { return LayerTypeXRCETH }

// CanDecode implements gopacket.DecodingLayer.
func (h *XRCETH) CanDecode() gopacket.LayerClass { return LayerTypeXRCETH }

// DecodeFromBytes implements gopacket.DecodingLayer.
func (h *XRCETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := need(data, roce.XRCETHLen, df); err != nil {
		return err
	}
	h.BaseLayer = cut(data, roce.XRCETHLen)
	h.Reserved = data[0]
	h.SRQ = get24(data[1:])
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *XRCETH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, roce.XRCETHLen)
	if err != nil {
		return err
	}
	d[0] = h.Reserved
	put24(d[1:], h.SRQ)
	return nil
}

// RDETH is the Reliable Datagram Extended Transport Header.
type RDETH struct {
	layers.BaseLayer
	extension
	Reserved  uint8  // 0
	EEContext uint32 // end-to-end context, 24 bits
}

// LayerType implements gopacket.Layer.
func (h *RDETH) LayerType() gopacket.LayerType { return LayerTypeRDETH }

// CanDecode implements gopacket.DecodingLayer.
func (h *RDETH) CanDecode() gopacket.LayerClass { return LayerTypeRDETH }

// DecodeFromBytes implements gopacket.DecodingLayer.
func (h *RDETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := need(data, roce.RDETHLen, df); err != nil {
		return err
	}
	h.BaseLayer = cut(data, roce.RDETHLen)
	h.Reserved = data[0]
	h.EEContext = get24(data[1:])
	return nil
}

// SerializeTo implements gopacket.SerializableLayer.
func (h *RDETH) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, roce.RDETHLen)
	if err != nil {
		return err
	}
	d[0] = h.Reserved
	put24(d[1:], h.EEContext)
	return nil
}
