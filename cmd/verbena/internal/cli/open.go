package cli

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// Open opens a device. dev is a device, an interface or an address, "" the first
// one. With addr, its GID table holds just this address; without dev the device
// is then the one that has it. GID index 0 is the address to use. A dev that does
// not have the address is a UsageError: packets would leave by another interface.
func Open(ctx context.Context, dev, addr string) (*verbs.Context, error) {
	if addr == "" {
		return rdma.Open(ctx, dev)
	}
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return nil, Usagef("--addr %s: not an IP address", addr)
	}
	on, err := interfaces(a)
	if err != nil {
		return nil, err
	}
	netdev := strings.TrimPrefix(dev, "soft_")
	switch {
	case netdev == "":
		netdev = on[0]
	case !slices.Contains(on, netdev):
		if _, err := net.InterfaceByName(netdev); err == nil {
			return nil, Usagef("--addr %s is an address of %s, not of -d %s", a, strings.Join(on, ", "), dev)
		}
	}
	c, err := rdma.Open(ctx, netdev, rdma.WithAddrs(netdev, a))
	if err != nil {
		return nil, fmt.Errorf("device of %s with address %s: %w", netdev, a, err)
	}
	return c, nil
}

// NetDev is the name of the interface that has the address; every loopback
// address is on the loopback interface.
func NetDev(a netip.Addr) (string, error) {
	on, err := interfaces(a)
	if err != nil {
		return "", err
	}
	return on[0], nil
}

// interfaces names those that have the address, at least one.
func interfaces(a netip.Addr) ([]string, error) {
	if a.IsLoopback() {
		lo, err := Loopback()
		return []string{lo}, err
	}
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var on []string
	for _, i := range ifs {
		list, err := i.Addrs()
		if err != nil {
			continue // the interface just went away
		}
		for _, has := range list {
			p, err := netip.ParsePrefix(has.String())
			if err == nil && p.Addr().Unmap() == a.WithZone("") && (a.Zone() == "" || a.Zone() == i.Name) {
				on = append(on, i.Name)
				break
			}
		}
	}
	if len(on) == 0 {
		return nil, fmt.Errorf("no interface has the address %s: %w", a, syscall.EADDRNOTAVAIL)
	}
	return on, nil
}

// Loopback is the name of the loopback interface.
func Loopback() (string, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("list network interfaces: %w", err)
	}
	for _, i := range ifs {
		if i.Flags&net.FlagLoopback != 0 && i.Flags&net.FlagUp != 0 {
			return i.Name, nil
		}
	}
	return "", Hint(fmt.Errorf("there is no loopback interface that is up"), "Bring it up: ip link set lo up")
}
