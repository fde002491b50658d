package rdma

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// loopback gives the name of the loopback interface; without one there is
// nothing to test with.
func loopback(t *testing.T) string {
	t.Helper()
	ifs, err := net.Interfaces()
	if err != nil {
		t.Skip(err)
	}
	for _, i := range ifs {
		if i.Flags&net.FlagLoopback != 0 && i.Flags&net.FlagUp != 0 {
			return i.Name
		}
	}
	t.Skip("no loopback interface is up")
	return ""
}

func TestOpen(t *testing.T) {
	t.Setenv(AddrsEnv, "")
	lo := loopback(t)
	ctx := t.Context()
	list, err := Devices(ctx)
	if err != nil || len(list) == 0 || list[len(list)-1].NetDev() != lo {
		t.Fatal(list, err)
	}
	// The usual addresses: by device, interface and address, and the first.
	addr := netip.MustParseAddr("127.0.0.77")
	for _, name := range []string{"soft_" + lo, lo, "127.0.0.77", "::ffff:127.0.0.77"} {
		c, err := Open(ctx, name, WithAddrs(lo, addr))
		if err != nil {
			t.Fatal(name, err)
		}
		gids, err := c.QueryGIDTable()
		if err != nil || len(gids) != 1 || gids[0].GID.Addr() != addr || gids[0].Type != ib.GIDTypeRoCEv2 {
			t.Error(name, gids, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	c, err := Open(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	if c.Device().Name() != list[0].Name() {
		t.Errorf("the first device is %s, opened was %s", list[0], c.Device())
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}

	for name, say := range map[string]string{"nothing0": "soft_" + lo, "192.0.2.200": "no device has the address", "fe80::1%nothing0": "no device has"} {
		_, err := Open(ctx, name)
		if !errors.Is(err, syscall.ENODEV) || !strings.Contains(err.Error(), say) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The loopback device is the last one whatever addresses it is given.
func TestLoopbackIsLast(t *testing.T) {
	lo := loopback(t)
	t.Setenv(AddrsEnv, lo+"=10.9.9.9")
	list, err := Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if last := list[len(list)-1]; last.NetDev() != lo {
		t.Errorf("%v, last is %s", list, last)
	}
}

func TestCancelled(t *testing.T) {
	loopback(t)
	list, err := Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, derr := Devices(ctx)
	_, oerr := Open(ctx, "")
	_, oerr2 := list[0].Open(ctx)
	for _, err := range []error{derr, oerr, oerr2} {
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestEnvironment(t *testing.T) {
	lo := loopback(t)
	gid := func(opts ...Option) string {
		t.Helper()
		c, err := Open(t.Context(), lo, opts...)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		gids, err := c.QueryGIDTable()
		if err != nil {
			t.Fatal(err)
		}
		var s []string
		for _, g := range gids {
			s = append(s, g.GID.Addr().String())
		}
		return strings.Join(s, " ")
	}
	t.Setenv(AddrsEnv, lo+"=127.0.0.5+127.0.0.6")
	if s := gid(); s != "127.0.0.5 127.0.0.6" {
		t.Error(s)
	}
	// What the program says holds, the last time.
	a, b := netip.MustParseAddr("127.0.0.7"), netip.MustParseAddr("127.0.0.8")
	if s := gid(WithAddrs(lo, a), WithAddrs(lo, b)); s != "127.0.0.8" {
		t.Error(s)
	}
	t.Setenv(AddrsEnv, "nothing0=10.0.0.1")
	for _, f := range []func() error{
		func() error { _, err := Devices(t.Context()); return err },
		func() error { _, err := Open(t.Context(), lo); return err },
	} {
		if err := f(); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "nothing0") || !strings.Contains(err.Error(), lo) {
			t.Error(err)
		}
	}
	t.Setenv(AddrsEnv, "")
	if _, err := Devices(t.Context(), WithAddrs(lo, netip.MustParseAddr("224.0.0.1"))); !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "WithAddrs") {
		t.Error(err)
	}
}

// broken lists a device that cannot be opened.
type broken struct{ list error }

func (b broken) Devices(context.Context) ([]driver.DeviceInfo, error) {
	return []driver.DeviceInfo{{Name: "broken0"}}, b.list
}

func (broken) Open(context.Context, string) (driver.Device, error) { return nil, syscall.ENXIO }

func TestCase101_OpenSkipsWhatDoesNotWork(t *testing.T) {
	t.Setenv(AddrsEnv, "")
	loopback(t)
	for _, b := range []broken{{}, {syscall.EACCES}} {
		c, err := Open(t.Context(), "", WithProvider(b))
		if err != nil {
			t.Fatal(err)
		}
		if c.Device().Name() == "broken0" {
			t.Error("opened the broken device")
		}
		c.Close()
	}
	if _, err := Open(t.Context(), "broken0", WithProvider(broken{})); !errors.Is(err, syscall.ENXIO) {
		t.Error(err)
	}
	if _, err := openFirst(t.Context(), nil); !errors.Is(err, syscall.ENODEV) {
		t.Error(err)
	}
}
