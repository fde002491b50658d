package layers

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// ICRC is the end of a packet: pad bytes and the invariant CRC.
type ICRC struct {
	layers.BaseLayer
	Pad   []byte // 0 to 3 zero bytes, as many as the BTH's PadCount says
	Value uint32
}

// LayerType implements gopacket.Layer.
func (h *ICRC) LayerType() gopacket.LayerType { return LayerTypeICRC }

// CanDecode implements gopacket.DecodingLayer.
func (h *ICRC) CanDecode() gopacket.LayerClass { return LayerTypeICRC }

// NextLayerType implements gopacket.DecodingLayer.
func (h *ICRC) NextLayerType() gopacket.LayerType { return gopacket.LayerTypeZero }

// DecodeFromBytes implements gopacket.DecodingLayer. data is pad and ICRC.
func (h *ICRC) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if err := need(data, roce.ICRCLen, df); err != nil {
		return err
	}
	n := len(data) - roce.ICRCLen
	h.BaseLayer = layers.BaseLayer{Contents: data}
	h.Pad, h.Value = data[:n:n], roce.ICRC(data)
	return nil
}

// SerializeTo implements gopacket.SerializableLayer. It writes Value as it is;
// see SetICRC.
func (h *ICRC) SerializeTo(b gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	d, err := space(b, len(h.Pad)+roce.ICRCLen)
	if err != nil {
		return err
	}
	roce.PutICRC(d[copy(d, h.Pad):], h.Value)
	return nil
}

// ErrNotRoCE tells that bytes are no whole IP packet with UDP and room for a BTH
// and an ICRC.
var ErrNotRoCE = errors.New("layers: not a whole RoCEv2 packet")

// split finds the UDP header in an IP packet, from the version byte to its last
// byte.
func split(ip []byte) (hdr, udp []byte, err error) {
	n, total, proto := 0, 0, byte(0)
	switch {
	case len(ip) >= 40 && ip[0]>>4 == 6:
		n, total, proto = 40, 40+int(binary.BigEndian.Uint16(ip[4:])), ip[6]
	case len(ip) >= 20 && ip[0]>>4 == 4:
		n, total, proto = int(ip[0]&0xF)*4, int(binary.BigEndian.Uint16(ip[2:])), ip[9]
	}
	const udpLen = 8
	if n < 20 || proto != 17 || total > len(ip) || total < n+udpLen+roce.BTHLen+roce.ICRCLen {
		return nil, nil, ErrNotRoCE
	}
	return ip[:n], ip[n:total], nil
}

// ComputeICRC returns the right ICRC of an IP packet, from the version byte on,
// with whatever identification and flags it has; the ICRC in it is not read
// (IBA A17: fields that routers change count as ones). The error is ErrNotRoCE.
func ComputeICRC(ip []byte) (uint32, error) {
	hdr, udp, err := split(ip)
	if err != nil {
		return 0, err
	}
	// 8 bytes of ones stand for the link header of InfiniBand.
	head := slices.Concat(slices.Repeat([]byte{0xFF}, 8), hdr, udp[:8+roce.BTHLen])
	h := head[8:]
	if h[0]>>4 == 6 {
		h[0] |= 0x0F // traffic class and flow label
		h[1], h[2], h[3] = 0xFF, 0xFF, 0xFF
		h[7] = 0xFF // hop limit
	} else {
		h[1], h[8] = 0xFF, 0xFF // TOS, TTL
		h[10], h[11] = 0xFF, 0xFF
	}
	u := h[len(hdr):]
	u[6], u[7] = 0xFF, 0xFF // UDP checksum
	u[8+4] = 0xFF           // FECN, BECN, reserved
	crc := crc32.ChecksumIEEE(head)
	return crc32.Update(crc, crc32.IEEETable, udp[8+roce.BTHLen:len(udp)-roce.ICRCLen]), nil
}

// CheckICRC reports whether the ICRC at the end of an IP packet is right. The
// error is ErrNotRoCE.
func CheckICRC(ip []byte) (bool, error) {
	want, err := ComputeICRC(ip)
	if err != nil {
		return false, err
	}
	_, udp, err := split(ip)
	return err == nil && roce.ICRC(udp) == want, err
}

// SetICRC writes the right ICRC to the end of an IP packet, and corrects the UDP
// checksum, which covers it, unless that is 0. The error is ErrNotRoCE.
func SetICRC(ip []byte) error {
	crc, err := ComputeICRC(ip)
	if err != nil {
		return err
	}
	hdr, udp, err := split(ip)
	if err != nil {
		return err
	}
	roce.PutICRC(udp[len(udp)-roce.ICRCLen:], crc)
	if binary.BigEndian.Uint16(udp[6:]) == 0 {
		return nil
	}
	addrs := hdr[12:20]
	if hdr[0]>>4 == 6 {
		addrs = hdr[8:40]
	}
	udp[6], udp[7] = 0, 0
	sum := ^fold(add(add(17+uint32(len(udp)), addrs), udp))
	if sum == 0 {
		sum = 0xFFFF
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	return nil
}

// PacketICRC is CheckICRC for the last IP packet in a decoded packet.
func PacketICRC(p gopacket.Packet) (bool, error) {
	n := p.NetworkLayer()
	if n == nil || p.Metadata().Truncated {
		return false, ErrNotRoCE
	}
	return CheckICRC(slices.Concat(n.LayerContents(), n.LayerPayload()))
}

func add(s uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) > 0 {
		s += uint32(b[0]) << 8
	}
	return s
}

func fold(s uint32) uint16 {
	s = s>>16 + s&0xFFFF
	return uint16(s>>16 + s&0xFFFF)
}
