package cmapp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/rdmacm"
)

// ResolveTimeout is what the programs give ResolveAddr and ResolveRoute.
const ResolveTimeout = 2 * time.Second

// Format says what addresses on the command line are, as -f does.
type Format string

// Formats.
const (
	FormatName Format = "name" // a host name, or an address of either family
	FormatIP   Format = "ip"   // an IPv4 address
	FormatIPv6 Format = "ipv6" // an IPv6 address
	FormatGID  Format = "gid"  // a GID, which is no address on RoCE
)

// Check refuses an unknown format, and GIDs.
func (f Format) Check() error {
	switch f {
	case FormatName, FormatIP, FormatIPv6:
		return nil
	case FormatGID:
		return cli.Hint(fmt.Errorf("-f gid: RoCE has no addresses of the family AF_IB: %w", syscall.EAFNOSUPPORT),
			"Give the IP address. That of the GID ::ffff:192.0.2.1 is 192.0.2.1")
	}
	return cli.Usagef("-f/--format %s: want name, ip, ipv6 or gid", f)
}

// Addrs are the addresses on the command line.
type Addrs struct {
	Format Format // "": a name
	Bind   string // own address; "": any
	Server string // "": this is the server
	Port   string // a number or the name of a service
	Space  rdmacm.PortSpace
}

// Resolve looks the addresses up. On the server src has the port. On the client dst has
// it, and src is the zero value if none is to be bound.
func (a *Addrs) Resolve(ctx context.Context) (src, dst netip.AddrPort, err error) {
	hints := rdmacm.AddrInfo{PortSpace: a.Space, Flags: rdmacm.RAINoRoute}
	if a.Format == FormatIP || a.Format == FormatIPv6 {
		hints.Flags |= rdmacm.RAINumericHost
	}
	passive := hints
	passive.Flags |= rdmacm.RAIPassive
	if a.Server == "" {
		ai, err := a.lookup(ctx, "-b/--bind", a.Bind, a.Port, &passive)
		if err != nil {
			return src, dst, err
		}
		return ai.Src, dst, nil
	}
	if a.Bind != "" {
		ai, err := a.lookup(ctx, "-b/--bind", a.Bind, "", &passive)
		if err != nil {
			return src, dst, err
		}
		src = ai.Src
	}
	ai, err := a.lookup(ctx, "-s/--server", a.Server, a.Port, &hints)
	if err != nil {
		return src, dst, err
	}
	return src, ai.Dst, nil
}

func (a *Addrs) lookup(ctx context.Context, option, node, service string, hints *rdmacm.AddrInfo) (*rdmacm.AddrInfo, error) {
	if hints.Flags&rdmacm.RAINumericHost != 0 && node != "" {
		addr, err := netip.ParseAddr(node)
		if err != nil || addr.Unmap().Is4() != (a.Format == FormatIP) {
			return nil, cli.Usagef("%s %s: -f %s says that it is an address of this family; it is not", option, node, a.Format)
		}
	}
	ai, err := rdmacm.GetAddrInfo(ctx, node, service, hints)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", option, node, err)
	}
	return ai, nil
}

// Lookup finds the first address of a host name, or the address that it is. "" is 0.0.0.0.
func Lookup(ctx context.Context, option, host string) (netip.Addr, error) {
	if host == "" {
		return netip.IPv4Unspecified(), nil
	}
	ai, err := rdmacm.GetAddrInfo(ctx, host, "", &rdmacm.AddrInfo{Flags: rdmacm.RAINoRoute})
	if err != nil {
		return netip.Addr{}, cli.Hint(fmt.Errorf("%s %s: %w", option, host, err), "Give an IP address, or a name that this host can resolve")
	}
	return ai.Dst.Addr(), nil
}

// CheckPort checks a port number.
func CheckPort(option string, n int) error {
	if n < 1 || n > 65535 {
		return cli.Usagef("%s %d: want 1 to 65535", option, n)
	}
	return nil
}

// CheckService checks what is a port number or the name of a service.
func CheckService(option, s string) error {
	if n, err := strconv.Atoi(s); err == nil {
		return CheckPort(option, n)
	}
	if s == "" || strings.ContainsAny(s, " :/") {
		return cli.Usagef("%s %q: want a port number or the name of a service", option, s)
	}
	return nil
}

// Byte reads an option's number from 0 to 255, in any base that C knows.
func Byte(option, s string) (uint8, error) {
	n, err := strconv.ParseUint(s, 0, 8)
	if err != nil {
		return 0, cli.Usagef("%s %s: want a number from 0 to 255", option, s)
	}
	return uint8(n), nil
}

// DatagramSpace reads the number of a port space for datagrams, as -p gives it.
func DatagramSpace(option, s string) (rdmacm.PortSpace, error) {
	n, err := strconv.ParseUint(s, 0, 16)
	if ps := rdmacm.PortSpace(n); err == nil && (ps == rdmacm.PSUDP || ps == rdmacm.PSIPoIB) {
		return ps, nil
	}
	return 0, cli.Usagef("%s %s: want %#x for UDP or %#x for IPoIB", option, s, uint16(rdmacm.PSUDP), uint16(rdmacm.PSIPoIB))
}

// Space reads the name of a port space.
func Space(option, s string, names map[string]rdmacm.PortSpace, want string) (rdmacm.PortSpace, error) {
	ps, ok := names[strings.ToLower(s)]
	if !ok {
		return 0, cli.Usagef("%s %s: want %s", option, s, want)
	}
	return ps, nil
}

// Range is an option's number with its limits.
type Range struct {
	Option        string
	Value         int
	Least, Beyond int // Beyond 0: no upper limit
}

// CheckRanges refuses numbers out of their limits.
func CheckRanges(list ...Range) error {
	for _, r := range list {
		switch {
		case r.Beyond > 0 && (r.Value < r.Least || r.Value >= r.Beyond):
			return cli.Usagef("%s %d: want %d to %d", r.Option, r.Value, r.Least, r.Beyond-1)
		case r.Value < r.Least:
			return cli.Usagef("%s %d: want %d or more", r.Option, r.Value, r.Least)
		}
	}
	return nil
}

// Explain adds to errors of the connection manager what to do about their common causes.
// own is the option that chooses the own address.
func Explain(err error, own string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EADDRINUSE):
		what := "Somebody has UDP port 4791 of the address and does not share it. Stop that,"
		if op := (*rdmacm.OpError)(nil); errors.As(err, &op) && op.Op == "bind_addr" {
			what = "Stop the process that has the port, choose another port with -p,"
		}
		return cli.Hint(err, "%s or choose another address with %s,\n  on the loopback interface any of 127.0.0.0/8: %s 127.0.0.2", what, own, own)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return cli.Hint(err, "This host does not have the address. Addresses that it has: verbena devices -v")
	}
	return err
}
