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
	"regexp"
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
	// clients are how many there are, one if 0: the kernel's at the same time, verbena's one after the other, since each process has an
	// address for itself.
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

// pingData is what rping -v prints for each ping.
var pingData = regexp.MustCompile(`(?m)^(server )?ping data: rdma-ping-(\d+): \S+$`)

// pings wants n lines of ping data in order, the same ones on both sides.
func pings(t *testing.T, who, out string, n int) {
	t.Helper()
	found := pingData.FindAllStringSubmatch(out, -1)
	for i, f := range found {
		if f[2] != strconv.Itoa(i) {
			t.Fatalf("%s: line %d is of ping %s", who, i, f[2])
		}
	}
	if len(found) != n {
		t.Errorf("%s: %d lines of ping data, want %d:\n%.2000s", who, len(found), n, out)
	}
}

// TestCMPing: rping's game with verbena ping, with each side as server, over each family of addresses.
func TestCMPing(t *testing.T) {
	kernelContent(t)
	for _, d := range both(t) {
		for _, family := range families {
			t.Run(fmt.Sprintf("%s-serves/%s", d.server.name, family), func(t *testing.T) {
				port := strconv.Itoa(nextPort())
				p := cmPair{server: d.server, client: d.client}
				p.port, _ = strconv.Atoi(port)
				const n = 3
				common := []string{"-p", port, "-v", "-C", strconv.Itoa(n)}
				p.serverArgs = d.server.cm(t, "rping", append(common, "-s", "-a", addr(t, family, d.server, d.server))...)
				p.clientArgs = d.client.cm(t, "rping", append(common, "-c", "-V", "-a", addr(t, family, d.server, d.client))...)
				serverOut, clientOut := p.run(t)
				pings(t, d.server.name, serverOut, n)
				pings(t, d.client.name, clientOut, n)
			})
		}
	}
}

// TestCMPingOptions: many pings, long ones, and servers for several clients.
func TestCMPingOptions(t *testing.T) {
	kernelContent(t)
	for _, d := range both(t) {
		for _, o := range []struct {
			name       string
			n, clients int
			server     []string
			client     []string
		}{
			{"1000", 1000, 1, nil, []string{"-V"}},
			{"65000-bytes", 5, 1, []string{"-S", "65000"}, []string{"-V", "-S", "65000"}},
			{"persistent", 3, 3, []string{"-P"}, []string{"-V"}},
			{"own-qp", 2, 1, []string{"-q"}, []string{"-V", "-q"}},
		} {
			t.Run(d.server.name+"-serves/"+o.name, func(t *testing.T) {
				port := nextPort()
				common := []string{"-p", strconv.Itoa(port), "-C", strconv.Itoa(o.n), "-a", d.server.ip4}
				p := cmPair{server: d.server, client: d.client, port: port, forever: o.clients > 1, clients: o.clients}
				p.serverArgs = d.server.cm(t, "rping", append(append([]string{"-s"}, common...), o.server...)...)
				p.clientArgs = d.client.cm(t, "rping", append(append([]string{"-c", "-v"}, common...), o.client...)...)
				_, clientOut := p.run(t)
				if o.clients == 1 {
					pings(t, d.client.name, clientOut, o.n)
				} else if n := len(pingData.FindAllString(clientOut, -1)); n != o.n*o.clients {
					t.Errorf("%d pings of %d clients, want %d:\n%s", n, o.clients, o.n*o.clients, clientOut)
				}
			})
		}
	}
}

// typeOfService is that of ucmatose -t; the server takes it over from the request.
const typeOfService = 32

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

// TestCMatose: many connections at once, with a type of service, long messages and IDs that move to another channel.
func TestCMatose(t *testing.T) {
	kernelContent(t)
	for _, d := range both(t) {
		for _, o := range []struct {
			name, family string
			options      []string
			client       []string
		}{
			{"50-connections", "IPv4", []string{"-c", "50", "-C", "5", "-S", "100"}, []string{"-t", strconv.Itoa(typeOfService)}},
			{"long-messages", "IPv6", []string{"-c", "3", "-C", "5", "-S", "20000", "-m"}, nil},
			{"link-local", "link-local", []string{"-c", "2"}, nil},
			{"no-messages", "IPv4", []string{"-c", "2", "-C", "0"}, nil},
			{"port-space-ib", "IPv4", []string{"-c", "2", "-P", "ib"}, nil},
		} {
			t.Run(d.server.name+"-serves/"+o.name, func(t *testing.T) {
				port := nextPort()
				p := cmPair{server: d.server, client: d.client, port: port}
				options := append([]string{"-p", strconv.Itoa(port)}, o.options...)
				p.serverArgs = d.server.cm(t, "ucmatose", append(options[:len(options):len(options)], "-b", addr(t, o.family, d.server, d.server))...)
				p.clientArgs = d.client.cm(t, "ucmatose", append(append(options[:len(options):len(options)], o.client...), "-s", addr(t, o.family, d.server, d.client))...)
				if o.client != nil {
					for _, from := range []*side{d.client, d.server} {
						marked := sniff(t, 20, fmt.Sprintf("udp dst port 4791 and src host %s and ip[1] & 0xfc == %d", from.ip4, typeOfService))
						t.Cleanup(func() {
							if !marked() {
								t.Errorf("%s sends no packets with type of service %d", from.name, typeOfService)
							}
						})
					}
				}
				serverOut, clientOut := p.run(t)
				for who, out := range map[string]string{d.server.name: serverOut, d.client.name: clientOut} {
					if !strings.Contains(out, "return status 0") {
						t.Errorf("%s:\n%s", who, out)
					}
				}
			})
		}
	}
}

// TestCMDatagrams: udaddy looks services up and gets its datagrams back.
func TestCMDatagrams(t *testing.T) {
	kernelContent(t)
	for _, d := range both(t) {
		for _, family := range families {
			t.Run(d.server.name+"-serves/"+family, func(t *testing.T) {
				p := cmPair{server: d.server, client: d.client, port: 7174}
				options := []string{"-c", "3", "-C", "4", "-S", "900"}
				p.serverArgs = d.server.cm(t, "udaddy", append(options, "-b", addr(t, family, d.server, d.server))...)
				p.clientArgs = d.client.cm(t, "udaddy", append(options, "-s", addr(t, family, d.server, d.client))...)
				serverOut, clientOut := p.run(t)
				for who, out := range map[string]string{d.server.name: serverOut, d.client.name: clientOut} {
					if !strings.Contains(out, "data transfers complete") || !strings.Contains(out, "return status 0") {
						t.Errorf("%s:\n%s", who, out)
					}
				}
			})
		}
	}
}

// TestCMTime: the steps of making and ending connections, many at once.
func TestCMTime(t *testing.T) {
	kernelContent(t)
	for _, d := range both(t) {
		t.Run(d.server.name+"-serves", func(t *testing.T) {
			port := nextPort()
			p := cmPair{server: d.server, client: d.client, port: port, forever: true}
			p.serverArgs = d.server.cm(t, "cmtime", "-p", strconv.Itoa(port), "-b", d.server.ip4)
			p.clientArgs = d.client.cm(t, "cmtime", "-p", strconv.Itoa(port), "-s", d.server.ip4, "-c", "40")
			_, out := p.run(t)
			if !strings.Contains(out, "disconnect") || strings.Contains(out, "error") {
				t.Errorf("%s:\n%s", d.client.name, out)
			}
			t.Logf("%s:\n%s", d.client.name, out)
		})
	}
}

// TestCMGroup: mckey's members of an IPv4 group hear the sender.
func TestCMGroup(t *testing.T) {
	kernelContent(t)
	for i, d := range both(t) {
		t.Run(d.client.name+"-sends", func(t *testing.T) {
			group := netip.AddrFrom4([4]byte{239, 77, 2, byte(20 + i)})
			p := cmPair{server: d.server, client: d.client, ready: func(ctx context.Context, s *side) error { return joined(ctx, s, group) }}
			options := []string{"-m", group.String(), "-C", "5", "-S", "500"}
			p.serverArgs = d.server.cm(t, "mckey", append(options, "-b", d.server.ip4)...)
			p.clientArgs = d.client.cm(t, "mckey", append(options, "-b", d.client.ip4, "-s")...)
			serverOut, clientOut := p.run(t)
			for who, out := range map[string]string{d.server.name: serverOut, d.client.name: clientOut} {
				if !strings.Contains(out, "data transfers complete") || !strings.Contains(out, "return status 0") {
					t.Errorf("%s:\n%s", who, out)
				}
			}
		})
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
