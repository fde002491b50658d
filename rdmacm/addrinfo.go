package rdmacm

import (
	"context"
	"net/netip"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// AddrInfoFlags say what GetAddrInfo shall do.
type AddrInfoFlags uint32

// Flags.
const (
	RAIPassive     AddrInfoFlags = 1 << 0 // for Bind and Listen
	RAINumericHost AddrInfoFlags = 1 << 1 // node is an address, no name
	RAINoRoute     AddrInfoFlags = 1 << 2 // no Route is looked up; there never is one on RoCE
	RAIFamily      AddrInfoFlags = 1 << 3 // Family of the hints counts
)

// Family is an address family.
type Family uint8

// Address families. AF_IB, which addresses by GID and service id, is refused on RoCE as in Linux.
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
// CreateEP wants (rdma_getaddrinfo). Either may be empty. hints, which may be nil, choose
// flags, family, type and port space, and with neither node nor service the
// destination; hints.Src is taken over. EINVAL: all is empty, or hints contradict
// each other or are unknown; EAFNOSUPPORT: FamilyIB; a *net.DNSError is in the error
// when the name or service is unknown, which matches EADDRNOTAVAIL too.
func GetAddrInfo(ctx context.Context, node, service string, hints *AddrInfo) (*AddrInfo, error) {
	return nil, errNotBuilt
}

// CreateEP makes a synchronous ID as ai says (rdma_create_ep). Passive: it is bound, and
// pd and attr are for the queue pairs that GetRequest makes. Active: address and route
// are resolved and the queue pair is created; its attr.Cap is updated. attr nil: no queue pair,
// pd is not looked at. Errors are those of NewIDType, Bind, ResolveAddr, ResolveRoute and CreateQP.
func (m *Manager) CreateEP(ctx context.Context, ai *AddrInfo, pd *verbs.PD, attr *verbs.QPInitAttr) (*ID, error) {
	return nil, errNotBuilt
}
