package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// AddrInfoFlags say what GetAddrInfo shall do.
type AddrInfoFlags uint32

// Flags.
const (
	RAIPassive     AddrInfoFlags = 1 << 0 // for Bind and Listen
	RAINumericHost AddrInfoFlags = 1 << 1 // node is an address, no name
	RAINoRoute     AddrInfoFlags = 1 << 2 // no Route is looked up; there never is one on RoCE
	RAIFamily      AddrInfoFlags = 1 << 3 // Family of the hints counts

	raiAll = RAIPassive | RAINumericHost | RAINoRoute | RAIFamily
)

// Family is an address family.
type Family uint8

// Address families. FamilyIB, which addresses by GID and service id, is refused on RoCE
// as in Linux.
const (
	FamilyUnspec Family = iota
	FamilyIPv4
	FamilyIPv6
	FamilyIB
)

// AddrInfo says how an endpoint is made (struct rdma_addrinfo).
type AddrInfo struct {
	Flags        AddrInfoFlags
	Family       Family
	QPType       ib.QPType // 0 in hints: as the port space has it
	PortSpace    PortSpace // 0 in hints: as the type has it, PSTCP
	Src          netip.AddrPort
	Dst          netip.AddrPort
	SrcCanonName string
	DstCanonName string
	Route        []PathRecord // in place of ResolveRoute
	ConnectData  []byte       // stands before the private data of Connect
	Next         *AddrInfo    // a further address of the same name
}

// GetAddrInfo translates a host name or address and a service name or port to what
// CreateEP wants (rdma_getaddrinfo). Either may be empty: no node is this host, every
// address of it with RAIPassive; no service is port 0. hints, which may be nil, choose
// flags, family, type and port space, and with neither node nor service the
// addresses; hints.Src is taken over. EINVAL: all is empty, or hints contradict
// each other or are unknown; EAFNOSUPPORT: FamilyIB; EADDRNOTAVAIL: the name or
// service is unknown (a *net.DNSError is in the error), or has no address of the family.
func GetAddrInfo(ctx context.Context, node, service string, hints *AddrInfo) (*AddrInfo, error) {
	const op = "getaddrinfo"
	if node == "" && service == "" && hints == nil {
		return nil, paramErr(op, "node", "is empty, and so are service and hints", syscall.EINVAL)
	}
	var h AddrInfo
	if hints != nil {
		h = *hints
	}
	if err := h.complete(); err != nil {
		return nil, opErr(op, err)
	}
	if node == "" && service == "" {
		h.Next = nil
		h.Route = slices.Clone(h.Route)
		return &h, nil
	}
	port, err := lookupPort(ctx, service, h.PortSpace)
	if err != nil {
		return nil, opErr(op, err)
	}
	addrs, err := lookupAddrs(ctx, node, &h)
	if err != nil {
		return nil, opErr(op, err)
	}
	var first *AddrInfo
	for _, a := range slices.Backward(addrs) {
		ai := h
		ai.Next = first
		ai.Family = FamilyIPv6
		if a.Is4() {
			ai.Family = FamilyIPv4
		}
		at := netip.AddrPortFrom(a, port)
		if h.Flags&RAIPassive != 0 {
			ai.Src, ai.Dst, ai.SrcCanonName = at, netip.AddrPort{}, node
		} else {
			ai.Dst, ai.DstCanonName = at, node
		}
		first = &ai
	}
	return first, nil
}

// complete checks hints and fills in what follows from others.
func (h *AddrInfo) complete() error {
	bad := func(param, why string) error { return fmt.Errorf("%s: %s: %w", param, why, syscall.EINVAL) }
	switch {
	case h.Flags&^raiAll != 0:
		return bad("Flags", fmt.Sprintf("unknown flags %#x", uint32(h.Flags&^raiAll)))
	case h.Family == FamilyIB:
		return fmt.Errorf("Family: there is no AF_IB on RoCE: %w", syscall.EAFNOSUPPORT)
	case h.Family > FamilyIB:
		return bad("Family", "is unknown")
	}
	datagram := h.QPType == ib.UD
	if h.PortSpace == 0 {
		if h.PortSpace = PSTCP; datagram {
			h.PortSpace = PSUDP
		}
	}
	switch h.PortSpace {
	case PSTCP, PSIB:
		if h.QPType == 0 {
			h.QPType = ib.RC
		}
		if h.PortSpace == PSTCP && datagram {
			return bad("QPType", "UD is not for RDMA_PS_TCP")
		}
	case PSUDP, PSIPoIB:
		if h.QPType == 0 {
			h.QPType = ib.UD
		}
		if h.QPType != ib.UD {
			return bad("QPType", fmt.Sprintf("%v is not for %v", h.QPType, h.PortSpace))
		}
	default:
		return bad("PortSpace", "is unknown")
	}
	return nil
}

func lookupPort(ctx context.Context, service string, ps PortSpace) (uint16, error) {
	if service == "" {
		return 0, nil
	}
	network := "tcp"
	if ps == PSUDP || ps == PSIPoIB {
		network = "udp"
	}
	n, err := net.DefaultResolver.LookupPort(ctx, network, service)
	if err != nil {
		return 0, unknownName("service", err)
	}
	return uint16(n), nil
}

func unknownName(param string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return fmt.Errorf("%s: %w: %w", param, err, syscall.EADDRNOTAVAIL)
}

func lookupAddrs(ctx context.Context, node string, h *AddrInfo) ([]netip.Addr, error) {
	var list []netip.Addr
	switch {
	case node == "" && h.Flags&RAIPassive != 0:
		list = []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	case node == "":
		list = []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	default:
		if a, err := netip.ParseAddr(node); err == nil {
			list = []netip.Addr{a.Unmap()}
			break
		}
		if h.Flags&RAINumericHost != 0 {
			return nil, fmt.Errorf("node: %q is not an address: %w", node, syscall.EADDRNOTAVAIL)
		}
		found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", node)
		if err != nil {
			return nil, unknownName("node", err)
		}
		for _, a := range found {
			list = append(list, a.Unmap())
		}
	}
	if h.Flags&RAIFamily != 0 && h.Family != FamilyUnspec {
		list = slices.DeleteFunc(list, func(a netip.Addr) bool { return a.Is4() != (h.Family == FamilyIPv4) })
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("node: %q has no address of the family: %w", node, syscall.EADDRNOTAVAIL)
	}
	return list, nil
}
