package cmapp

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/rdmacm"
)

func usage(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.As(err, new(*cli.UsageError)) {
		t.Errorf("%s: %v, want a usage error", what, err)
	}
}

func TestResolve(t *testing.T) {
	addr := netip.MustParseAddrPort
	for _, c := range []struct {
		addrs    Addrs
		src, dst netip.AddrPort
	}{
		{Addrs{Port: "7471", Space: rdmacm.PSTCP}, addr("0.0.0.0:7471"), netip.AddrPort{}},
		{Addrs{Port: "7471", Bind: "127.0.0.1", Space: rdmacm.PSTCP}, addr("127.0.0.1:7471"), netip.AddrPort{}},
		{Addrs{Port: "1", Bind: "::", Space: rdmacm.PSTCP}, addr("[::]:1"), netip.AddrPort{}},
		{Addrs{Port: "7174", Server: "10.0.0.1", Space: rdmacm.PSUDP}, netip.AddrPort{}, addr("10.0.0.1:7174")},
		{Addrs{Port: "7174", Server: "10.0.0.1", Bind: "10.0.0.2", Space: rdmacm.PSUDP}, addr("10.0.0.2:0"), addr("10.0.0.1:7174")},
		{Addrs{Port: "7471", Server: "2001:db8::1", Format: FormatIPv6, Space: rdmacm.PSIB}, netip.AddrPort{}, addr("[2001:db8::1]:7471")},
		{Addrs{Port: "7471", Server: "10.0.0.1", Format: FormatIP, Space: rdmacm.PSTCP}, netip.AddrPort{}, addr("10.0.0.1:7471")},
	} {
		src, dst, err := c.addrs.Resolve(t.Context())
		if err != nil || src != c.src || dst != c.dst {
			t.Errorf("%+v: %v %v %v, want %v %v", c.addrs, src, dst, err, c.src, c.dst)
		}
	}
	for _, a := range []Addrs{
		{Port: "7471", Server: "localhost", Format: FormatIP, Space: rdmacm.PSTCP},
		{Port: "7471", Server: "::1", Format: FormatIP, Space: rdmacm.PSTCP},
		{Port: "7471", Server: "10.0.0.1", Format: FormatIPv6, Space: rdmacm.PSTCP},
		{Port: "7471", Server: "10.0.0.1", Bind: "here", Format: FormatIP, Space: rdmacm.PSTCP},
	} {
		_, _, err := a.Resolve(t.Context())
		usage(t, fmt.Sprintf("%+v", a), err)
	}
}

func TestOptions(t *testing.T) {
	for s, want := range map[string]uint8{"0": 0, "255": 255, "0x20": 32, "010": 8} {
		if n, err := Byte("-t", s); err != nil || n != want {
			t.Errorf("%s: %d %v", s, n, err)
		}
	}
	for _, s := range []string{"256", "-1", "", "x"} {
		_, err := Byte("-t", s)
		usage(t, s, err)
	}
	for s, want := range map[string]rdmacm.PortSpace{"0x111": rdmacm.PSUDP, "0x0111": rdmacm.PSUDP, "2": rdmacm.PSIPoIB, "0x0002": rdmacm.PSIPoIB} {
		if ps, err := DatagramSpace("-p", s); err != nil || ps != want {
			t.Errorf("%s: %v %v", s, ps, err)
		}
	}
	for _, s := range []string{"0x106", "1", "udp", "", "-2"} {
		_, err := DatagramSpace("-p", s)
		usage(t, s, err)
	}
	for _, f := range []Format{FormatName, FormatIP, FormatIPv6} {
		if err := f.Check(); err != nil {
			t.Errorf("%s: %v", f, err)
		}
	}
	usage(t, "format", Format("mac").Check())
	if err := FormatGID.Check(); !errors.Is(err, syscall.EAFNOSUPPORT) || cli.ExitCode(err) != cli.ExitFailed {
		t.Errorf("gid: %v", err)
	}
	for _, s := range []string{"1", "65535", "http"} {
		if err := CheckService("-p", s); err != nil {
			t.Errorf("%s: %v", s, err)
		}
	}
	for _, s := range []string{"0", "65536", "-1", "", "a b", "1:2"} {
		usage(t, s, CheckService("-p", s))
	}
	m := Messages{Count: 7}
	if err := m.Check(); err != nil || m.Count != 0 {
		t.Errorf("size 0: %+v %v", m, err)
	}
	usage(t, "count", (&Messages{Count: -1, Size: 1}).Check())
	usage(t, "size", (&Messages{Size: -1}).Check())
}

// What failed, with what to do, and the number that the programs end with.
func TestFailure(t *testing.T) {
	for _, c := range []struct {
		ev  rdmacm.Event
		say string
	}{
		{rdmacm.Event{Type: rdmacm.EventRejected, Status: int(rdmacm.RejectBadServiceID)}, "start the server first"},
		{rdmacm.Event{Type: rdmacm.EventRejected, Status: int(rdmacm.RejectConsumer)}, "The server refuses"},
		{rdmacm.Event{Type: rdmacm.EventUnreachable, Status: 1}, "start the server first"},
		{rdmacm.Event{Type: rdmacm.EventUnreachable, Status: 2}, "The server refuses"},
		{rdmacm.Event{Type: rdmacm.EventUnreachable, Status: -int(syscall.ETIMEDOUT)}, "does not answer"},
		{rdmacm.Event{Type: rdmacm.EventAddrError, Status: -int(syscall.ENODEV)}, "RDMA_CM_EVENT_ADDR_ERROR"},
	} {
		err := Failure(&c.ev)
		if !Failed(c.ev.Type) || !strings.Contains(err.Error(), c.say) || Status(err) != c.ev.Status {
			t.Errorf("%v: %v, status %d", &c.ev, err, Status(err))
		}
	}
	if Failed(rdmacm.EventEstablished) || Failed(rdmacm.EventDisconnected) {
		t.Error("success is a failure")
	}
	if Status(nil) != 0 || Status(errors.New("x")) != -1 || Status(fmt.Errorf("x: %w", syscall.EINVAL)) != -int(syscall.EINVAL) {
		t.Error("status")
	}
}
