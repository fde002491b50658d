package vm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/interop/vm/proto"
)

const (
	bridgeName = "br0"
	// maxMTU is what the tap and the bridge start with; guests choose theirs.
	maxMTU = 9000
	// firstGuest is the last number of the first guest's addresses; the host has 1.
	firstGuest = 2
)

// Net is a network namespace with a bridge, on which the guests' taps meet. The bridge has the host side's addresses.
type Net struct {
	name string

	mu     sync.Mutex // guards guests
	guests int
}

var netCount atomic.Int32

// netPrefix begins the names of all namespaces of this package; the process id follows.
const netPrefix = "verbena-vm-"

// NewNet makes a namespace. The caller closes it after the guests in it.
func NewNet() (*Net, error) {
	sweepNets()
	n := &Net{name: fmt.Sprintf("%s%d-%d", netPrefix, os.Getpid(), netCount.Add(1))}
	err := onOwnThread(func() error {
		h, err := netns.NewNamed(n.name) // moves this thread into it
		if err != nil {
			return err
		}
		defer h.Close()
		return n.setUp()
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("network namespace %s (needs root): %w", n.name, err), n.Close())
	}
	return n, nil
}

// setUp runs inside the new namespace.
func (n *Net) setUp() error {
	for _, f := range []string{"all", "default"} {
		// Without duplicate address detection the link-local address is usable at once.
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+f+"/accept_dad", []byte("0"), 0o644)
		_ = os.WriteFile("/proc/sys/net/ipv6/conf/"+f+"/accept_ra", []byte("0"), 0o644)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bridgeName
	attrs.MTU = maxMTU
	snooping := false
	br := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}
	if err := netlink.LinkAdd(br); err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	for _, ip := range []netip.Addr{hostIPv4, hostIPv6} {
		addr := &netlink.Addr{IPNet: netlink.NewIPNet(ip.AsSlice())}
		addr.Mask = mask(ip)
		if ip.Is6() {
			addr.Flags |= unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(br, addr); err != nil {
			return fmt.Errorf("address %v: %w", ip, err)
		}
	}
	return netlink.LinkSetUp(br)
}

// addTap makes the tap of the next guest and returns its name and the guest's number.
func (n *Net) addTap() (name string, number int, err error) {
	n.mu.Lock()
	number = firstGuest + n.guests
	n.guests++
	n.mu.Unlock()
	name = fmt.Sprintf("tap%d", number)
	err = n.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		tap := &netlink.Tuntap{
			LinkAttrs: attrs,
			Mode:      netlink.TUNTAP_MODE_TAP,
			Flags:     netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR | netlink.TUNTAP_ONE_QUEUE,
		}
		if err := netlink.LinkAdd(tap); err != nil {
			return fmt.Errorf("tap: %w", err)
		}
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		br, err := netlink.LinkByName(bridgeName)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetMTU(link, br.Attrs().MTU); err != nil {
			return err
		}
		if err := netlink.LinkSetMaster(link, br); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	})
	return name, number, err
}

func (n *Net) removeTap(name string) error {
	return n.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkDel(link)
	})
}

// setMTU sets the bridge and the tap.
func (n *Net) setMTU(tap string, mtu int) error {
	return n.Do(func() error {
		for _, name := range []string{tap, bridgeName} {
			link, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetMTU(link, mtu); err != nil {
				return fmt.Errorf("%s: mtu %d: %w", name, mtu, err)
			}
		}
		return nil
	})
}

// Path is the namespace's path, for setns and nsenter.
func (n *Net) Path() string { return filepath.Join("/run/netns", n.name) }

// Interface is the host side's interface in the namespace.
func (n *Net) Interface() string { return bridgeName }

// Host addresses in the namespace.
var (
	hostIPv4 = netip.MustParseAddr("10.77.0.1")
	hostIPv6 = netip.MustParseAddr("fd77::1")
)

// HostIPv4 is the host side's IPv4 address.
func (n *Net) HostIPv4() netip.Addr { return hostIPv4 }

// HostIPv6 is the host side's IPv6 address.
func (n *Net) HostIPv6() netip.Addr { return hostIPv6 }

// Do runs f on a thread inside the namespace. Sockets that f opens stay in the namespace; goroutines that f starts are outside.
func (n *Net) Do(f func() error) error {
	return onOwnThread(func() error {
		if err := n.enter(); err != nil {
			return err
		}
		return f()
	})
}

// enter moves the calling thread, which must be locked and thrown away afterwards.
func (n *Net) enter() error {
	h, err := netns.GetFromPath(n.Path())
	if err != nil {
		return fmt.Errorf("%s: %w", n.Path(), err)
	}
	defer h.Close()
	return netns.Set(h)
}

// InNetns changes cmd, which must not be started yet, to run inside the namespace.
func (n *Net) InNetns(cmd *exec.Cmd) error {
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		return err
	}
	args := []string{nsenter, "--net=" + n.Path(), "--", cmd.Path}
	if len(cmd.Args) > 1 {
		args = append(args, cmd.Args[1:]...)
	}
	cmd.Path, cmd.Args = nsenter, args
	return nil
}

// WaitListen waits until a TCP socket listens on port in the namespace (not in a guest).
func (n *Net) WaitListen(ctx context.Context, port int) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var listens bool
		err := n.Do(func() error {
			for _, f := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
				b, err := os.ReadFile(f)
				if err != nil && !os.IsNotExist(err) {
					return err
				}
				listens = listens || proto.Listens(string(b), port)
			}
			return nil
		})
		if err != nil || listens {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no listener on TCP port %d of the host side: %w", port, ctx.Err())
		case <-tick.C:
		}
	}
}

// Close removes the namespace with all that is in it.
func (n *Net) Close() error {
	err := netns.DeleteNamed(n.name)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// sweepNets removes namespaces of this package whose process is gone: a test that was killed could not.
func sweepNets() {
	found, _ := filepath.Glob("/run/netns/" + netPrefix + "*")
	for _, path := range found {
		name := filepath.Base(path)
		pid, _, _ := strings.Cut(strings.TrimPrefix(name, netPrefix), "-")
		if p, err := strconv.Atoi(pid); err == nil && unix.Kill(p, 0) == unix.ESRCH {
			_ = netns.DeleteNamed(name)
		}
	}
}

// onOwnThread runs f on a thread that ends with it, so that f may change the thread's namespace.
func onOwnThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the runtime ends the thread with the goroutine
		done <- f()
	}()
	return <-done
}

func mask(ip netip.Addr) []byte {
	m := make([]byte, ip.BitLen()/8)
	for i := range prefixLen(ip) / 8 {
		m[i] = 0xFF
	}
	return m
}

// prefixLen is the length of this network's prefixes.
func prefixLen(ip netip.Addr) int {
	if ip.Is4() {
		return 24
	}
	return 64
}
