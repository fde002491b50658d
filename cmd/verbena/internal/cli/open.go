package cli

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/verbs"
)

// Open opens a device. dev is a device, an interface or an address, "" the first
// one. With addr, its GID table holds just this address; without dev the device
// is then the one that has it. GID index 0 is the address to use.
func Open(ctx context.Context, dev, addr string) (*verbs.Context, error) {
	if addr == "" {
		return rdma.Open(ctx, dev)
	}
	a, err := netip.ParseAddr(addr)
	if err != nil {
		return nil, Usagef("--addr %s: not an IP address", addr)
	}
	netdev := strings.TrimPrefix(dev, "soft_")
	if netdev == "" {
		if netdev, err = NetDev(a); err != nil {
			return nil, err
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
	if a.IsLoopback() {
		return Loopback()
	}
	ifs, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("list network interfaces: %w", err)
	}
	for _, i := range ifs {
		list, err := i.Addrs()
		if err != nil {
			continue // the interface just went away
		}
		for _, has := range list {
			p, err := netip.ParsePrefix(has.String())
			if err == nil && p.Addr().Unmap() == a.WithZone("") && (a.Zone() == "" || a.Zone() == i.Name) {
				return i.Name, nil
			}
		}
	}
	return "", fmt.Errorf("no interface has the address %s: %w", a, syscall.EADDRNOTAVAIL)
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
