package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/interop/vm/proto"
)

// guestRoot is where the host's root is mounted; commands run chrooted there.
const guestRoot = "/root"

// ifname of the guest's only interface.
const ifname = "eth0"

var boot proto.Boot

// openPort loads what the agent port needs and opens it.
func openPort() (*os.File, error) {
	for _, m := range []struct{ source, target, fstype string }{
		{"proc", "/proc", "proc"}, {"sysfs", "/sys", "sysfs"}, {"devtmpfs", "/dev", "devtmpfs"},
	} {
		if err := mount(m.source, m.target, m.fstype, 0, ""); err != nil {
			return nil, err
		}
	}
	b, err := os.ReadFile(proto.BootFile)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &boot); err != nil {
		return nil, fmt.Errorf("%s: %w", proto.BootFile, err)
	}
	for _, m := range boot.Modules {
		if err := loadModule(m); err != nil {
			return nil, err
		}
	}
	var found string
	err = poll(10*time.Second, "virtio-serial port "+proto.PortName, func() bool {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			if b, err := os.ReadFile(n); err == nil && strings.TrimSpace(string(b)) == proto.PortName {
				found = "/dev/" + filepath.Base(filepath.Dir(n))
				_, err := os.Stat(found)
				return err == nil
			}
		}
		return false
	})
	if err != nil {
		return nil, err
	}
	return os.OpenFile(found, os.O_RDWR, 0)
}

// setUp brings up network, root and device, and returns the kernel's release.
func setUp() (string, error) {
	if err := unix.Sethostname([]byte(boot.Hostname)); err != nil {
		return "", err
	}
	if err := setUpNetwork(); err != nil {
		return "", err
	}
	if err := setUpRoot(); err != nil {
		return "", err
	}
	p, err := startProcess(&proto.Request{Argv: []string{"rdma", "link", "add", "rxe0", "type", "rxe", "netdev", ifname}}, 30*time.Second)
	if err != nil {
		return "", err
	}
	var resp proto.Response
	if p.wait(&resp); resp.Code != 0 {
		return "", fmt.Errorf("rdma link add: exit code %d: %s%s", resp.Code, resp.Stderr, resp.Stdout)
	}
	err = poll(10*time.Second, "/dev/infiniband/uverbs0", func() bool {
		_, err := os.Stat("/dev/infiniband/uverbs0")
		return err == nil
	})
	if err != nil {
		return "", err
	}
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	return strings.TrimSpace(string(release)), err
}

func setUpNetwork() error {
	// Addresses are usable at once; nobody else is on this link.
	for _, f := range []string{"all", "default", ifname} {
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+f+"/accept_dad", []byte("0"), 0o644)
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+f+"/accept_ra", []byte("0"), 0o644)
	}
	if lo, err := netlink.LinkByName("lo"); err == nil {
		_ = netlink.LinkSetUp(lo)
	}
	link, err := netlink.LinkByName(ifname)
	if err != nil {
		return fmt.Errorf("%s: %w", ifname, err)
	}
	if err := netlink.LinkSetMTU(link, boot.MTU); err != nil {
		return fmt.Errorf("%s: mtu %d: %w", ifname, boot.MTU, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	for _, a := range boot.Addrs {
		addr, err := netlink.ParseAddr(a)
		if err != nil {
			return err
		}
		if addr.IP.To4() == nil {
			addr.Flags |= unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("%s: address %s: %w", ifname, a, err)
		}
	}
	return poll(10*time.Second, "carrier of "+ifname, func() bool {
		b, err := os.ReadFile("/sys/class/net/" + ifname + "/operstate")
		return err == nil && strings.TrimSpace(string(b)) == "up"
	})
}

// setUpRoot mounts the host's root read-only, with file systems of the guest's own where programs write or look at the kernel.
func setUpRoot() error {
	const options = "trans=virtio,version=9p2000.L,cache=loose,msize=512000"
	if err := mount(proto.RootTag, guestRoot, "9p", unix.MS_RDONLY, options); err != nil {
		return err
	}
	for _, m := range []struct{ source, target, fstype string }{
		{"proc", "/proc", "proc"},
		{"sysfs", "/sys", "sysfs"},
		{"devtmpfs", "/dev", "devtmpfs"},
		{"tmpfs", "/tmp", "tmpfs"},
		{"tmpfs", "/run", "tmpfs"},
	} {
		if _, err := os.Stat(guestRoot + m.target); err != nil {
			return fmt.Errorf("the host's root lacks %s", m.target)
		}
		if err := mount(m.source, guestRoot+m.target, m.fstype, 0, ""); err != nil {
			return err
		}
	}
	for _, d := range []string{"/dev/shm", "/dev/pts"} {
		if err := os.MkdirAll(guestRoot+d, 0o755); err != nil {
			return err
		}
	}
	return mount("tmpfs", guestRoot+"/dev/shm", "tmpfs", 0, "")
}

func mount(source, target, fstype string, flags uintptr, data string) error {
	if err := os.MkdirAll(target, 0o755); err != nil && !os.IsExist(err) {
		return err
	}
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		return fmt.Errorf("mounting %s on %s: %w", fstype, target, err)
	}
	return nil
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil && err != unix.EEXIST {
		return fmt.Errorf("loading %s: %w", path, err)
	}
	return nil
}

func setMTU(n int) error {
	link, err := netlink.LinkByName(ifname)
	if err != nil {
		return err
	}
	return netlink.LinkSetMTU(link, n)
}

// poll asks cond every 10 ms until it holds.
func poll(timeout time.Duration, what string, cond func() bool) error {
	for end := time.Now().Add(timeout); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("no %s after %v", what, timeout)
		}
	}
	return nil
}
