package mad

import (
	"encoding/binary"
	"net/netip"
)

// Port spaces of rdma_cm, the upper half of its service ids.
const (
	PortSpaceIPoIB = 0x0002
	PortSpaceTCP   = 0x0106
	PortSpaceUDP   = 0x0111
	PortSpaceIB    = 0x013F
)

// ServiceID returns rdma_cm's service id of a port (IBA A11.2: IP CM service ids).
func ServiceID(space, port uint16) uint64 { return uint64(space)<<16 | uint64(port) }

// SplitServiceID takes a service id of rdma_cm apart; ok is false if it is none.
func SplitServiceID(id uint64) (space, port uint16, ok bool) {
	space, port = uint16(id>>16), uint16(id)
	return space, port, id>>32 == 0 && (space == PortSpaceIPoIB || space>>8 == 1)
}

// IPHeaderLen is the length of an IPHeader in bytes.
const IPHeaderLen = 36

// IPHeader is what rdma_cm puts before the private data of REQ and SIDR_REQ: the
// addresses of its users (IBA A11.3). REP, RTU, REJ and SIDR_REP have none.
//
//	0: version (major in the high half, minor in the low one), both 0
//	1: IP version in the high half
//	2: port of the sender
//	4: address of the sender, IPv4 in the last 4 of 16 bytes
//	20: address of the receiver
type IPHeader []byte

// Put writes the whole header. Addresses are both IPv4 (or IPv4-mapped) or both IPv6.
func (h IPHeader) Put(src, dst netip.Addr, port uint16) {
	_ = h[IPHeaderLen-1]
	clear(h[:IPHeaderLen])
	src, dst = src.Unmap(), dst.Unmap()
	version := uint8(4)
	if !src.Is4() || !dst.Is4() {
		version = 6
	}
	h.SetIPVersion(version)
	h.SetSrcPort(port)
	h.put(4, src)
	h.put(20, dst)
}

func (h IPHeader) put(at int, a netip.Addr) {
	if a.Is4() {
		b := a.As4()
		clear(h[at : at+12])
		copy(h[at+12:at+16], b[:])
		return
	}
	b := a.As16()
	copy(h[at:at+16], b[:])
}

// Version returns major and minor version, both 0 in one byte.
func (h IPHeader) Version() uint8 { return h[0] }

// SetVersion sets major and minor version.
func (h IPHeader) SetVersion(v uint8) { h[0] = v }

// IPVersion returns 4 or 6.
func (h IPHeader) IPVersion() uint8 { return h[1] >> 4 }

// SetIPVersion sets the IP version.
func (h IPHeader) SetIPVersion(v uint8) { setBits(&h[1], 4, 4, v) }

// SrcPort returns the port of the sender's rdma_cm id.
func (h IPHeader) SrcPort() uint16 { return binary.BigEndian.Uint16(h[2:]) }

// SetSrcPort sets the port of the sender's rdma_cm id.
func (h IPHeader) SetSrcPort(v uint16) { binary.BigEndian.PutUint16(h[2:], v) }

// Src returns the sender's address: IPv4 if IPVersion is 4, else IPv6.
func (h IPHeader) Src() netip.Addr { return h.addr(4) }

// Dst returns the receiver's address: IPv4 if IPVersion is 4, else IPv6.
func (h IPHeader) Dst() netip.Addr { return h.addr(20) }

func (h IPHeader) addr(at int) netip.Addr {
	if h.IPVersion() == 4 {
		return netip.AddrFrom4([4]byte(h[at+12 : at+16]))
	}
	return netip.AddrFrom16([16]byte(h[at : at+16]))
}
