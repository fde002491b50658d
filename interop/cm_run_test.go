//go:build interop && linux

package interop

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Programs of the connection manager: Debian's rping, ucmatose, udaddy, cmtime and mckey in the guest, verbena's commands on this side.

// cmCommands are verbena's names of the programs.
var cmCommands = map[string]string{"rping": "ping", "ucmatose": "cmatose", "udaddy": "udaddy", "cmtime": "cmtime", "mckey": "mckey"}

// cm is the command line of one of librdmacm's programs on a side.
func (s *side) cm(t *testing.T, name string, args ...string) []string {
	t.Helper()
	if s.name == "kernel" {
		return append([]string{name}, args...)
	}
	binary, err := verbena()
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{binary, cmCommands[name]}, args...)
}

// families of addresses. The last one is link-local, with the scope that it needs on each side.
var families = []string{"IPv4", "IPv6", "link-local"}

// addr is an address of to, as from writes it.
func addr(t *testing.T, family string, to, from *side) string {
	t.Helper()
	switch family {
	case "IPv4":
		return to.ip4
	case "IPv6":
		if to.name == "kernel" {
			return guest.IPv6().String()
		}
		return guest.Net().HostIPv6().String()
	}
	a, err := linkLocal(to)
	if err != nil {
		t.Fatal(err)
	}
	zone := guest.Net().Interface()
	if from.name == "kernel" {
		zone = "eth0"
	}
	return a.WithZone(zone).String()
}

// linkLocal is a side's link-local address.
func linkLocal(s *side) (netip.Addr, error) {
	if s.name == "kernel" {
		return kernelLinkLocal()
	}
	return ourLinkLocal()
}

var (
	kernelLinkLocal = sync.OnceValues(func() (netip.Addr, error) {
		b, err := guest.ReadFile(context.Background(), "/proc/net/if_inet6")
		if err != nil {
			return netip.Addr{}, err
		}
		return linkLocalOf(string(b), "eth0")
	})
	ourLinkLocal = sync.OnceValues(func() (a netip.Addr, err error) {
		err = guest.Net().Do(func() error {
			b, err := os.ReadFile("/proc/thread-self/net/if_inet6")
			if err == nil {
				a, err = linkLocalOf(string(b), guest.Net().Interface())
			}
			return err
		})
		return a, err
	})
)

// linkLocalOf finds an interface's address in /proc/net/if_inet6: the digits of the address come first, the name last.
func linkLocalOf(table, netdev string) (netip.Addr, error) {
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 6 || f[5] != netdev || !strings.HasPrefix(f[0], "fe80") {
			continue
		}
		var text []string
		for i := 0; i < len(f[0]); i += 4 {
			text = append(text, f[0][i:i+4])
		}
		return netip.ParseAddr(strings.Join(text, ":"))
	}
	return netip.Addr{}, fmt.Errorf("%s has no link-local address:\n%s", netdev, table)
}

// cmListening waits until a program of the side takes requests on a port.
func cmListening(ctx context.Context, s *side, port int) error {
	if s.name == "kernel" {
		return poll(ctx, "listener in the guest", func() (bool, error) {
			r, err := guest.Run(ctx, "rdma", "resource", "show", "cm_id")
			if err != nil {
				return false, err
			}
			for line := range strings.Lines(string(r.Stdout)) {
				if strings.Contains(line, "LISTEN") && strings.Contains(line+" ", fmt.Sprintf(":%d ", port)) ||
					strings.Contains(line, "LISTEN") && strings.HasSuffix(strings.TrimSpace(line), fmt.Sprintf(":%d", port)) {
					return true, nil
				}
			}
			return false, nil
		})
	}
	// Verbena's listens as soon as it has its socket; what the guest starts takes much longer.
	return poll(ctx, "socket of verbena's device", func() (bound bool, err error) {
		err = guest.Net().Do(func() error {
			for _, name := range []string{"udp", "udp6"} {
				b, err := os.ReadFile("/proc/thread-self/net/" + name)
				if err != nil {
					return err
				}
				bound = bound || strings.Contains(string(b), ":12B7 ") // 4791
			}
			return nil
		})
		return bound, err
	})
}

func poll(ctx context.Context, what string, f func() (bool, error)) error {
	for {
		if ok, err := f(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no %s: %w", what, ctx.Err())
		case <-time.After(30 * time.Millisecond):
		}
	}
}

// signal sends a signal to a program.
func signal(p program, sig syscall.Signal) error {
	switch p := p.(type) {
	case guestProgram:
		return p.p.Kill(sig)
	case hostProgram:
		return syscall.Kill(-p.cmd.Process.Pid, sig)
	}
	return syscall.EINVAL
}

// running is a program whose result comes when it has ended.
type running struct {
	side    *side
	program program
	done    chan struct{}
	out     string
	err     error
}

// begin starts a program; it ends with the test at the latest.
func begin(ctx context.Context, t *testing.T, s *side, argv []string) *running {
	t.Helper()
	p, err := s.start(ctx, argv)
	if err != nil {
		t.Fatalf("%s: %v: %v", s.name, argv, err)
	}
	r := &running{side: s, program: p, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.out, r.err = p.Wait(ctx)
	}()
	t.Cleanup(func() {
		select {
		case <-r.done:
		default:
			_ = signal(p, syscall.SIGKILL)
			<-r.done
		}
	})
	return r
}

// end waits for a program's own end.
func (r *running) end() (string, error) {
	<-r.done
	return r.out, r.err
}

// stop ends a program that serves for ever, with a signal.
func (r *running) stop(t *testing.T, sig syscall.Signal) string {
	t.Helper()
	if err := signal(r.program, sig); err != nil {
		t.Error(err)
	}
	<-r.done
	return r.out
}

// cmPair is a server's program and the client's.
type cmPair struct {
	server, client         *side
	serverArgs, clientArgs []string
	port                   int
	// forever: the server does not end by itself.
	forever bool
	// clients are how many there are, one if 0: the kernel's at the same time, verbena's one after the other.
	clients int
	// ready waits for the server, if it does not listen on the port.
	ready func(context.Context, *side) error
}

// run wants both programs to end well. It returns what they wrote.
func (p *cmPair) run(t *testing.T) (serverOut, clientOut string) {
	t.Helper()
	keep := true
	done := watch(t)
	defer func() { done(keep) }()
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	s := begin(ctx, t, p.server, p.serverArgs)
	listen, cancelListen := context.WithCancel(ctx)
	defer cancelListen()
	go func() {
		select {
		case <-s.done: // a server that ends at once never listens
			cancelListen()
		case <-listen.Done():
		}
	}()
	if p.ready == nil {
		p.ready = func(ctx context.Context, s *side) error { return cmListening(ctx, s, p.port) }
	}
	if err := p.ready(listen, p.server); err != nil {
		cancel()
		out, serverErr := s.end()
		t.Fatalf("%s as server: %v\n%s\n%v", p.server.name, err, out, serverErr)
	}
	var clientErr error
	var together []*running
	for range max(p.clients, 1) {
		c := begin(ctx, t, p.client, p.clientArgs)
		if together = append(together, c); p.client.name != "kernel" {
			<-c.done
		}
	}
	for _, c := range together {
		out, err := c.end()
		clientOut, clientErr = clientOut+out, errors.Join(clientErr, err)
	}
	if clientErr != nil && !p.forever {
		select { // what the server says helps
		case <-s.done:
		case <-time.After(2 * time.Second):
			cancel()
		}
	}
	var serverErr error
	if p.forever {
		serverOut = s.stop(t, syscall.SIGINT)
	} else {
		serverOut, serverErr = s.end()
	}
	if clientErr != nil || serverErr != nil {
		t.Fatalf("%s as client: %v\n%s\n%s as server: %v\n%s", p.client.name, clientErr, clientOut, p.server.name, serverErr, serverOut)
	}
	keep = false
	return serverOut, clientOut
}

// both are the two directions.
func both(t *testing.T) []struct{ server, client *side } {
	t.Helper()
	ours, kernel := ourSide(t), kernelSide()
	return []struct{ server, client *side }{{kernel, ours}, {ours, kernel}}
}

// sniff looks for packets on the guest's wire. seen ends it, and tells whether there were as many.
func sniff(t *testing.T, packets int, filter string) (seen func() bool) {
	t.Helper()
	cmd := exec.Command("tcpdump", "-i", guest.Tap(), "-nn", "-q", "-s", "160", "-c", strconv.Itoa(packets), "-w", "/dev/null", filter)
	if err := guest.InNetns(cmd); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(out)
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, "listening") {
		t.Fatalf("tcpdump: %s%v", line, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, in)
	}()
	return func() bool {
		found := true
		select {
		case <-done: // it ends by itself
		case <-time.After(3 * time.Second):
			found = false
			_ = cmd.Process.Kill()
			<-done
		}
		_ = cmd.Wait()
		return found
	}
}

// joined waits until a side is in an IPv4 group; /proc/net/igmp has the address in the machine's byte order.
func joined(ctx context.Context, s *side, group netip.Addr) error {
	a := group.As4()
	word := fmt.Sprintf("%02X%02X%02X%02X", a[3], a[2], a[1], a[0])
	return poll(ctx, "member of "+group.String()+" on "+s.name, func() (bool, error) {
		if s.name == "kernel" {
			b, err := guest.ReadFile(ctx, "/proc/net/igmp")
			return strings.Contains(string(b), word), err
		}
		var b []byte
		err := guest.Net().Do(func() (err error) {
			b, err = os.ReadFile("/proc/thread-self/net/igmp")
			return err
		})
		return strings.Contains(string(b), word), err
	})
}
