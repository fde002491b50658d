package rdmacm_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmacm"
)

func TestGetAddrInfo(t *testing.T) {
	ctx := t.Context()
	ap := netip.MustParseAddrPort
	for _, c := range []struct {
		node, service string
		hints         *rdmacm.AddrInfo
		want          rdmacm.AddrInfo
		more          bool
	}{
		{"192.0.2.1", "7471", nil, rdmacm.AddrInfo{Family: rdmacm.FamilyIPv4, QPType: ib.RC, PortSpace: rdmacm.PSTCP, Dst: ap("192.0.2.1:7471")}, false},
		{"2001:db8::1", "", nil, rdmacm.AddrInfo{Family: rdmacm.FamilyIPv6, QPType: ib.RC, PortSpace: rdmacm.PSTCP, Dst: ap("[2001:db8::1]:0")}, false},
		{"::ffff:192.0.2.1", "1", nil, rdmacm.AddrInfo{Family: rdmacm.FamilyIPv4, QPType: ib.RC, PortSpace: rdmacm.PSTCP, Dst: ap("192.0.2.1:1")}, false},
		{"", "7471", &rdmacm.AddrInfo{Flags: rdmacm.RAIPassive}, rdmacm.AddrInfo{Flags: rdmacm.RAIPassive, Family: rdmacm.FamilyIPv4, QPType: ib.RC, PortSpace: rdmacm.PSTCP, Src: ap("0.0.0.0:7471")}, true},
		{"", "7471", &rdmacm.AddrInfo{Flags: rdmacm.RAIPassive | rdmacm.RAIFamily, Family: rdmacm.FamilyIPv6}, rdmacm.AddrInfo{Flags: rdmacm.RAIPassive | rdmacm.RAIFamily, Family: rdmacm.FamilyIPv6, QPType: ib.RC, PortSpace: rdmacm.PSTCP, Src: ap("[::]:7471")}, false},
		{"", "http", nil, rdmacm.AddrInfo{Family: rdmacm.FamilyIPv4, QPType: ib.RC, PortSpace: rdmacm.PSTCP, Dst: ap("127.0.0.1:80")}, true},
		{"192.0.2.1", "53", &rdmacm.AddrInfo{PortSpace: rdmacm.PSUDP, Src: ap("192.0.2.9:0")}, rdmacm.AddrInfo{Family: rdmacm.FamilyIPv4, QPType: ib.UD, PortSpace: rdmacm.PSUDP, Src: ap("192.0.2.9:0"), Dst: ap("192.0.2.1:53")}, false},
		{"192.0.2.1", "53", &rdmacm.AddrInfo{QPType: ib.UD}, rdmacm.AddrInfo{Family: rdmacm.FamilyIPv4, QPType: ib.UD, PortSpace: rdmacm.PSUDP, Dst: ap("192.0.2.1:53")}, false},
		{"", "", &rdmacm.AddrInfo{Dst: ap("192.0.2.1:5"), PortSpace: rdmacm.PSIB, QPType: ib.XRCSend}, rdmacm.AddrInfo{QPType: ib.XRCSend, PortSpace: rdmacm.PSIB, Dst: ap("192.0.2.1:5")}, false},
	} {
		ai, err := rdmacm.GetAddrInfo(ctx, c.node, c.service, c.hints)
		if err != nil {
			t.Errorf("%q %q: %v", c.node, c.service, err)
			continue
		}
		if ai.Flags != c.want.Flags || ai.Family != c.want.Family || ai.QPType != c.want.QPType || ai.PortSpace != c.want.PortSpace || ai.Src != c.want.Src || ai.Dst != c.want.Dst || (ai.Next != nil) != c.more {
			t.Errorf("%q %q: %+v, want %+v", c.node, c.service, ai, c.want)
		}
	}
	for _, c := range []struct {
		node, service string
		hints         *rdmacm.AddrInfo
		want          syscall.Errno
		dns           bool
	}{
		{"", "", nil, syscall.EINVAL, false},
		{"192.0.2.1", "", &rdmacm.AddrInfo{Flags: 1 << 9}, syscall.EINVAL, false},
		{"192.0.2.1", "", &rdmacm.AddrInfo{Family: rdmacm.FamilyIB}, syscall.EAFNOSUPPORT, false},
		{"192.0.2.1", "", &rdmacm.AddrInfo{Family: 9}, syscall.EINVAL, false},
		{"192.0.2.1", "", &rdmacm.AddrInfo{PortSpace: 9}, syscall.EINVAL, false},
		{"192.0.2.1", "", &rdmacm.AddrInfo{PortSpace: rdmacm.PSTCP, QPType: ib.UD}, syscall.EINVAL, false},
		{"192.0.2.1", "", &rdmacm.AddrInfo{PortSpace: rdmacm.PSUDP, QPType: ib.RC}, syscall.EINVAL, false},
		{"192.0.2.1", "", &rdmacm.AddrInfo{Flags: rdmacm.RAIFamily, Family: rdmacm.FamilyIPv6}, syscall.EADDRNOTAVAIL, false},
		{"localhost", "", &rdmacm.AddrInfo{Flags: rdmacm.RAINumericHost}, syscall.EADDRNOTAVAIL, false},
		{"192.0.2.1", "no-such-service", nil, syscall.EADDRNOTAVAIL, true},
	} {
		_, err := rdmacm.GetAddrInfo(ctx, c.node, c.service, c.hints)
		var dns *net.DNSError
		if !errors.Is(err, c.want) || errors.As(err, &dns) != c.dns {
			t.Errorf("%q %q %+v: %v", c.node, c.service, c.hints, err)
		}
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := rdmacm.GetAddrInfo(done, "localhost.invalid", "", nil); err == nil {
		t.Error("no error")
	}
}
