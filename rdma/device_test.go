package rdma

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// Only real addresses of the interface are in the table, one that reaches
// furthest first.
func TestCase76_FirstGIDWorks(t *testing.T) {
	t.Setenv(AddrsEnv, "")
	loopback(t)
	list, err := Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		c, err := d.Open(t.Context())
		if err != nil {
			t.Error(d, err)
			continue
		}
		gids, err := c.QueryGIDTable()
		if err != nil || len(gids) == 0 || gids[0].Index != 0 || gids[0].NetDev != d.NetDev() || gids[0].IfIndex == 0 {
			t.Errorf("%s: %+v, %v", d, gids, err)
		}
		real := addrsOf(t, d.NetDev())
		routable := false
		for _, g := range gids {
			if !slices.Contains(real, g.GID.Addr()) {
				t.Errorf("%s: GID %v is not an address of the interface (%v)", d, g.GID, real)
			}
			routable = routable || !g.GID.Addr().IsLinkLocalUnicast()
		}
		if len(gids) > 0 && routable && gids[0].GID.Addr().IsLinkLocalUnicast() {
			t.Errorf("%s: GID 0 is link-local: %v", d, gids)
		}
		if p, err := c.QueryPort(1); err != nil || p.State != ib.PortActive {
			t.Error(d, p.State, err)
		}
		if err := c.Close(); err != nil {
			t.Error(d, err)
		}
	}
}

func addrsOf(t *testing.T, netdev string) (list []netip.Addr) {
	t.Helper()
	i, err := net.InterfaceByName(netdev)
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := i.Addrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			list = append(list, p.Addr().Unmap().WithZone(""))
		}
	}
	return list
}

// guids lists name and GUID of every device.
func guids(t *testing.T) string {
	t.Helper()
	list, err := Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	seen := map[uint64]bool{}
	for _, d := range list {
		if d.GUID() == 0 || seen[d.GUID()] {
			t.Errorf("%s: GUID %#x is 0 or taken", d, d.GUID())
		}
		seen[d.GUID()] = true
		fmt.Fprintf(&b, "%s %#x\n", d, d.GUID())
	}
	return b.String()
}

const guidChild = "VERBENA_TEST_PRINT_GUIDS"

func TestCase79_GUIDs(t *testing.T) {
	t.Setenv(AddrsEnv, "")
	mine := guids(t)
	if os.Getenv(guidChild) != "" {
		fmt.Printf("%s<<\n%s>>\n", guidChild, mine)
		return
	}
	list, err := Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		c, err := d.Open(t.Context())
		if err != nil {
			t.Error(err)
			continue
		}
		if a, err := c.QueryDevice(); err != nil || a.NodeGUID != d.GUID() || a.SysImageGUID == 0 {
			t.Errorf("%s: %#x, query_device %#x and %#x, %v", d, d.GUID(), a.NodeGUID, a.SysImageGUID, err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	// Another process sees the same.
	cmd := exec.Command(os.Args[0], "-test.run=^TestCase79_GUIDs$", "-test.count=1")
	cmd.Env = append(os.Environ(), guidChild+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, rest, _ := strings.Cut(string(out), guidChild+"<<\n")
	theirs, _, _ := strings.Cut(rest, ">>")
	if theirs != mine {
		t.Errorf("here\n%sin another process\n%s", mine, theirs)
	}
}
