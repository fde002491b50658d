package main

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/verbena-rdma/verbena/rdma"
)

// openHost makes this process a host on the RDMA network. With an address its device has
// just this one, so that other processes can have the machine's others.
func openHost(own netip.Addr) (*rdma.Host, error) {
	if !own.IsValid() || own.IsUnspecified() {
		return rdma.NewHost()
	}
	netdev, err := interfaceOf(own)
	if err != nil {
		return nil, err
	}
	return rdma.NewHost(rdma.WithAddrs(netdev, own))
}

// interfaceOf is the interface that has the address: every one of 127.0.0.0/8 is on the
// loopback interface.
func interfaceOf(a netip.Addr) (string, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, i := range ifs {
		if a.IsLoopback() && a.Is4() && i.Flags&net.FlagLoopback != 0 {
			return i.Name, nil
		}
		list, err := i.Addrs()
		if err != nil {
			continue // it went away just now
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

// closeHost closes it, and keeps an earlier error before its own.
func closeHost(h *rdma.Host, err *error) {
	if e := h.Close(); *err == nil {
		*err = e
	}
}
