package udp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/pkt"
)

func TestAddLocalErrors(t *testing.T) {
	p := open(t, Config{})
	for _, c := range []struct {
		addr netip.Addr
		want error
	}{
		{netip.Addr{}, unix.EINVAL},
		{netip.IPv4Unspecified(), unix.EINVAL},
		{netip.IPv6Unspecified(), unix.EINVAL},
		{netip.MustParseAddr("224.0.0.1"), unix.EINVAL},
		{netip.MustParseAddr("ff02::1%lo"), unix.EINVAL},
		{netip.MustParseAddr("fe80::1"), unix.EINVAL},
		{netip.MustParseAddr("192.0.2.1"), unix.EADDRNOTAVAIL},
		{netip.MustParseAddr("2001:db8::1"), unix.EADDRNOTAVAIL},
		{netip.MustParseAddr("fe80::1%nosuchinterface"), unix.EADDRNOTAVAIL},
	} {
		_, err := p.AddLocal(c.addr)
		if c.addr.Is6() && errors.Is(err, unix.EAFNOSUPPORT) {
			continue
		}
		if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.addr.String()) && c.addr.IsValid() {
			t.Errorf("%v: %v", c.addr, err)
		}
	}
	if n := len(*p.socks.Load()); n != 0 {
		t.Errorf("%d sockets are left", n)
	}
	// The IPv4-mapped form is the same address.
	a, i := addLoopback(t, p)
	if k, err := p.AddLocal(netip.AddrFrom16(a.As16())); k != i || err != nil {
		t.Errorf("%v: %d, %v", a, k, err)
	}
	_ = p.Close()
	if _, err := p.AddLocal(a); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Who already has the port is told, and what to do.
func TestAddressInUse(t *testing.T) {
	a, b := open(t, Config{}), open(t, Config{})
	addr, _ := addLoopback(t, a)
	_, err := b.AddLocal(addr)
	if !errors.Is(err, unix.EADDRINUSE) {
		t.Fatal(err)
	}
	for _, want := range []string{addr.String(), ":4791", "this process has the address open", "share that one", "rdma.WithAddrs"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q lacks %q", err, want)
		}
	}
}

// Of another process its number and name are told, as far as they are known.
func TestDescribeHolder(t *testing.T) {
	h := holder{addr: netip.MustParseAddr("127.0.0.1"), uid: os.Getuid() + 1000}
	for _, c := range []struct {
		h    holder
		pid  int
		name string
		want string
	}{
		{h, 1 << 30, "other", "held by process 1073741824 (other) of uid %d, and only processes of one user share an address: stop it, or give this one another address (rdma.WithAddrs, VERBENA_ADDRS)"},
		{h, 0, "", "held by a process of uid %d (as root `ss -ulpn sport = :4791` names it), and only processes of one user share an address: stop it, or give"},
		{holder{addr: h.addr, uid: os.Getuid()}, 1 << 30, "other", "which does not share it with this one: stop it, or give"},
		{holder{addr: netip.IPv4Unspecified()}, 0, "", "rdma link delete"},
	} {
		want := strings.ReplaceAll(c.want, "%d", fmt.Sprint(c.h.uid))
		if got := c.h.describe(c.pid, c.name); !strings.Contains(got, want) {
			t.Errorf("%q lacks %q", got, want)
		}
	}
}

func TestParseHolders(t *testing.T) {
	// From /proc/net/udp and udp6 of Linux 6.18 on amd64.
	table := []byte(`   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  100: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 11111 2 0000000000000000 0
  101: 0100007F:12B8 00000000:0000 07 00000000:00000000 00:00000000 00000000  1001        0 22222 2 0000000000000000 0
  102: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 33333 2 0000000000000000 0
  103: 00000000000000000000000001000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000  1002        0 44444 2 0000000000000000 0
  104: 0100007:12B7 garbage
  105: 0100007X:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 55555 2 0000000000000000 0
`)
	if word([]byte{1, 0, 0, 0, 0, 0, 0, 0}) != 1 {
		t.Skip("the table is of a little-endian machine")
	}
	for addr, want := range map[string]string{
		"127.0.0.1": "[{127.0.0.1 1000 11111} {0.0.0.0 0 33333}]",
		"127.0.0.2": "[{0.0.0.0 0 33333}]",
		"::1":       "[{::1 1002 44444}]",
		"::2":       "[]",
	} {
		var list []string
		for _, h := range parseHolders(table, netip.MustParseAddr(addr)) {
			list = append(list, fmt.Sprintf("{%v %d %d}", h.addr, h.uid, h.inode))
		}
		if got := fmt.Sprint(list); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
}

// Nobody can take the port over with SO_REUSEADDR, as he could if our sockets
// had it.
func TestNoTakeover(t *testing.T) {
	p := open(t, Config{})
	addr, i := addLoopback(t, p)
	fd := (*p.socks.Load())[i].fd
	for name, opt := range map[string]int{"SO_REUSEADDR": unix.SO_REUSEADDR, "SO_NO_CHECK": unix.SO_NO_CHECK} {
		if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, opt); v != 0 || err != nil {
			t.Errorf("%s is %d, %v", name, v, err)
		}
	}
	thief, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(thief) }()
	if err := unix.SetsockoptInt(thief, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(thief, sockaddr(addr, 0, 4791)); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("bind with SO_REUSEADDR: %v", err)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor survives exec: %x, %v", flags, err)
	}
}

func countFDs(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Neither success nor failure leaks a descriptor.
func TestNoLeak(t *testing.T) {
	use := func() {
		p, err := Open(Config{})
		if err != nil {
			t.Fatal(err)
		}
		addr, _ := addLoopback(t, p)
		addLoopback(t, p)
		q, err := Open(Config{NoGSO: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := q.AddLocal(addr); err == nil {
			t.Error("the address is taken")
		}
		if _, err := q.AddLocal(netip.MustParseAddr("192.0.2.1")); err == nil {
			t.Error("no such address")
		}
		for range 2 {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			if err := q.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	use() // whatever the runtime opens for itself
	before := countFDs(t)
	for range 5 {
		use()
	}
	if after := countFDs(t); after != before {
		t.Errorf("%d descriptors, %d before", after, before)
	}
}

// After Close all calls are harmless.
func TestAfterClose(t *testing.T) {
	p := open(t, Config{})
	addr, local := addLoopback(t, p)
	_ = p.Close()
	tx := pkt.NewTx(pkt.TxCaps{MaxSegs: 1})
	put(t, tx, flow(addr, addr, local), 0, nil)
	p.Send(tx)
	rx := pkt.Rx{Dgrams: make([]pkt.Datagram, 0, 1)}
	if n := p.Recv(&rx); n != 0 {
		t.Error(n)
	}
	p.Kick()
	p.Wait(-1)
	if st := p.Stats(); st.TxMsgs != 0 {
		t.Errorf("%+v", st)
	}
}

const childEnv = "VERBENA_UDP_TEST_CHILD"

// All of it works for a user without any right or locked memory.
func TestUnprivileged(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		// Here is the child.
		if os.Getuid() == 0 {
			t.Fatal("child is root")
		}
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{}); err != nil {
			t.Fatal(err)
		}
		a, b := open(t, Config{}), open(t, Config{})
		aAddr, aLocal := addLoopback(t, a)
		bAddr, _ := addLoopback(t, b)
		exchange(t, a, b, aAddr, bAddr, aLocal)
		if _, err := b.AddLocal(aAddr); !errors.Is(err, unix.EADDRINUSE) {
			t.Error(err)
		}
		fmt.Println("child done")
		return
	}
	// A copy of this program, where nobody can reach it.
	dir, err := os.MkdirTemp("", "verbena-udp")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(dir, "udp.test")
	if err := copyFile(exe, "/proc/self/exe"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^TestUnprivileged$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), childEnv+"=1")
	if os.Getuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "child done") {
		t.Errorf("%v\n%s", err, out)
	}
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
