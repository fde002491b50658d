package rdmacm_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// network is a network namespace of its own, or where that is not allowed the one of the
// tests. What it does it does on a thread that is in it.
type network struct {
	calls chan func()
	own   bool
	env   []string // of processes
}

// newNetwork makes a network with a loopback interface that is up.
func newNetwork(t testing.TB) *network {
	t.Helper()
	n := &network{calls: make(chan func())}
	if strings.Contains(t.Name(), "Unsteered") {
		n.env = []string{unsteeredEnv + "=1"}
	}
	up := make(chan error)
	go n.serve(up)
	if err := <-up; err != nil {
		t.Logf("no network of its own: %v", err)
	} else {
		n.own = true
	}
	t.Cleanup(func() { close(n.calls) })
	return n
}

func (n *network) serve(up chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// /proc/self/net is this thread's, for the whole process.
		done := make(chan struct{})
		go func() {
			defer close(done)
			n.serve(up)
		}()
		<-done
		runtime.UnlockOSThread()
		return
	}
	err := unix.Unshare(unix.CLONE_NEWNET)
	if err == nil {
		var lo netlink.Link
		if lo, err = netlink.LinkByName("lo"); err == nil {
			err = netlink.LinkSetUp(lo)
		}
	}
	up <- err
	for f := range n.calls {
		f()
	}
	// Never unlocked: the thread, and with it the network, ends.
}

// do runs f in the network.
func (n *network) do(f func()) {
	done := make(chan struct{})
	n.calls <- func() {
		defer close(done)
		f()
	}
	<-done
}

// need skips a test where networks are not to be had.
func (n *network) need(t testing.TB) {
	t.Helper()
	if !n.own {
		t.Skip("needs network namespaces: root, or an own user namespace")
	}
}

// address gives an interface of the network an address.
func (n *network) address(t testing.TB, name, prefix string) {
	t.Helper()
	p := netip.MustParsePrefix(prefix)
	var err error
	n.do(func() {
		var l netlink.Link
		if l, err = netlink.LinkByName(name); err == nil {
			err = netlink.AddrAdd(l, &netlink.Addr{
				IPNet: &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}, Flags: unix.IFA_F_NODAD,
			})
		}
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
	})
	if err != nil {
		t.Fatalf("%s %s: %v", name, prefix, err)
	}
}

// link joins two networks by a pair of interfaces of the name "eth0".
func link(t testing.TB, a, b *network) {
	t.Helper()
	tid := make(chan int, 1)
	b.do(func() { tid <- unix.Gettid() })
	fd, err := os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", <-tid))
	if err != nil {
		t.Fatal(err)
	}
	defer fd.Close()
	a.do(func() {
		v := netlink.NewVeth(netlink.LinkAttrs{Name: "eth0"})
		v.PeerName = "eth0"
		v.PeerNamespace = netlink.NsFd(int(fd.Fd()))
		err = netlink.LinkAdd(v)
	})
	if err != nil {
		t.Fatalf("no pair of interfaces: %v", err)
	}
}

// process is a process of a test, see peerProgram.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   io.WriteCloser
	pid  int
	ids  int
	done chan struct{} // closed at its end
	err  error         // then: of Wait

	mu    sync.Mutex
	lines []string // that nobody has read
	all   []string
	more  chan struct{} // has a token when there are more
}

// spawn starts a process in the network. addrs is "lo=127.1.2.3", or "all" for what the
// interfaces have.
func (n *network) spawn(t testing.TB, addrs string, env ...string) *process {
	t.Helper()
	p := n.launch(t, addrs, env...)
	fmt.Sscanf(p.reply(), "ready %d", &p.pid)
	if p.pid == 0 {
		t.Fatalf("the process does not begin: %v", p.all)
	}
	return p
}

// launch is spawn without waiting until the process is ready.
func (n *network) launch(t testing.TB, addrs string, env ...string) *process {
	t.Helper()
	p := &process{t: t, done: make(chan struct{}), more: make(chan struct{}, 1)}
	p.cmd = exec.Command(cmOK(os.Executable())(t))
	p.cmd.Env = slices.Concat(os.Environ(), []string{peerEnv + "=" + addrs}, n.env, env)
	p.cmd.Stderr = os.Stderr
	p.in = cmOK(p.cmd.StdinPipe())(t)
	out := cmOK(p.cmd.StdoutPipe())(t)
	var err error
	n.do(func() { err = p.cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		in := bufio.NewScanner(out)
		for in.Scan() {
			p.mu.Lock()
			p.lines, p.all = append(p.lines, in.Text()), append(p.all, in.Text())
			p.mu.Unlock()
			p.wake()
		}
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(p.kill)
	return p
}

func (p *process) wake() {
	select {
	case p.more <- struct{}{}:
	default:
	}
}

// take waits for the first line that has the prefix and takes it out; "": the process ended before.
func (p *process) take(prefix string) string {
	p.t.Helper()
	limit := time.NewTimer(cmPatience)
	defer limit.Stop()
	ended := false
	for {
		p.mu.Lock()
		for i, l := range p.lines {
			if strings.HasPrefix(l, prefix) {
				p.lines = append(p.lines[:i:i], p.lines[i+1:]...)
				p.mu.Unlock()
				p.wake() // for who else waits
				return strings.TrimSpace(strings.TrimPrefix(l, prefix))
			}
		}
		p.mu.Unlock()
		if ended {
			return ""
		}
		select {
		case <-p.more:
		case <-p.done:
			ended = true
		case <-limit.C:
			p.mu.Lock()
			defer p.mu.Unlock()
			p.t.Fatalf("process %d: no line %q in\n%s", p.pid, prefix, strings.Join(p.all, "\n"))
		}
	}
}

func (p *process) reply() string { p.t.Helper(); return p.take("= ") }

// do makes a call, which must succeed.
func (p *process) do(format string, args ...any) string {
	p.t.Helper()
	r := p.try(format, args...)
	if strings.HasPrefix(r, "error ") || r == "" {
		p.t.Fatalf("process %d: %s: %s\n%s", p.pid, fmt.Sprintf(format, args...), r, strings.Join(p.all, "\n"))
	}
	return r
}

// try makes a call.
func (p *process) try(format string, args ...any) string {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		p.t.Fatal(err)
	}
	return p.reply()
}

// refused makes a call that must fail with an errno, and gives the error's text.
func (p *process) refused(want syscall.Errno, format string, args ...any) string {
	p.t.Helper()
	r := p.try(format, args...)
	var errno int
	if _, err := fmt.Sscanf(r, "error %d ", &errno); err != nil || syscall.Errno(errno) != want {
		p.t.Errorf("process %d: %s: %s, want %v", p.pid, fmt.Sprintf(format, args...), r, want)
	}
	return r
}

// event waits for what happens to an ID.
func (p *process) event(name, what string) string {
	p.t.Helper()
	return p.take("! " + name + " " + what)
}

// id makes an ID of a new name.
func (p *process) id(space string) string {
	p.t.Helper()
	p.ids++
	name := fmt.Sprintf("i%d", p.ids)
	p.do("id %s %s", name, space)
	return name
}

// listen listens and gives the name of the ID and where it is.
func (p *process) listen(space, at string) (string, netip.AddrPort) {
	p.t.Helper()
	name := p.id(space)
	a := netip.MustParseAddrPort(p.do("bind %s %s", name, at))
	p.do("listen %s 0", name)
	return name, a
}

// connect connects, and gives the name of the ID.
func (p *process) connect(to netip.AddrPort, src ...string) string {
	p.t.Helper()
	name := p.id("tcp")
	p.do("resolve %s %v %s", name, to, strings.Join(src, " "))
	if e := p.event(name, ""); !strings.HasPrefix(e, "ESTABLISHED 0") {
		p.t.Fatalf("process %d: connecting to %v: %s", p.pid, to, e)
	}
	return name
}

// kill kills the process and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// end ends the process properly.
func (p *process) end() {
	p.t.Helper()
	p.in.Close()
	ctx, cancel := context.WithTimeout(context.Background(), cmPatience)
	defer cancel()
	select {
	case <-p.done:
		if p.err != nil {
			p.t.Errorf("process %d: %v\n%s", p.pid, p.err, strings.Join(p.all, "\n"))
		}
	case <-ctx.Done():
		p.t.Errorf("process %d does not end:\n%s", p.pid, strings.Join(p.all, "\n"))
	}
}

// talkOver sends messages both ways over a connection.
func talkOver(c *process, cn string, s *process, sn string) {
	c.t.Helper()
	for i := range 2 {
		text := fmt.Sprintf("m%d-%s-%s", i, cn, sn)
		if r := c.do("send %s %s", cn, text); r != "success" && r != "SUCCESS" {
			c.t.Fatalf("send: %s", r)
		}
		if got := s.event(sn, "RECV"); got != text {
			s.t.Fatalf("received %q, want %q", got, text)
		}
		c, cn, s, sn = s, sn, c, cn
	}
}
