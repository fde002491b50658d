package host

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Tests with processes start the test binary again as a member that does what it is told
// on its standard input, a command a line, and answers a line each; what happens on its own it tells in lines that
// begin with "event".
const (
	envChild  = "HOST_TEST_CHILD"  // Config.Private
	envKill   = "HOST_TEST_KILL"   // the step at which the process kills itself
	envStop   = "HOST_TEST_STOP"   // the step at which it stops itself, once
	envFails  = "HOST_TEST_FAILS"  // how often OnDeath fails
	envSteps  = "HOST_TEST_STEPS"  // tell the steps
	envAnswer = "HOST_TEST_ANSWER" // Config.Answer
)

// Every goroutine ends with the group that started it.
func TestMain(m *testing.M) {
	if private := os.Getenv(envChild); private != "" {
		child(private)
		return
	}
	goleak.VerifyTestMain(m)
}

type member struct {
	cfg   Config
	g     *Group
	ports map[string]driver.PortClaim
	conns map[string]driver.ConnHandle
	fds   []int
}

func child(private string) {
	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		fmt.Printf(format+"\n", args...)
		mu.Unlock()
	}
	m := &member{ports: map[string]driver.PortClaim{}, conns: map[string]driver.ConnHandle{}}
	kill, stop, steps := os.Getenv(envKill), os.Getenv(envStop), os.Getenv(envSteps) != ""
	fails, _ := strconv.Atoi(os.Getenv(envFails))
	m.cfg = Config{
		IfIndex: 1, Private: private,
		OnSteward: func(on bool) { say("event steward %v", on) },
		OnDeath: func(d Death) {
			list := []string{}
			for _, c := range d.Conns {
				list = append(list, strconv.Itoa(int(c.RemoteID)))
			}
			if fails > 0 {
				fails--
				say("event failed %d", d.Slot)
				d.Fail()
				return
			}
			say("event death %d [%s]", d.Slot, strings.Join(list, " "))
		},
		Step: func(name string) {
			if steps {
				say("event step %s", name)
			}
			if name == stop {
				stop = ""
				// To this thread: then it stops before it goes on.
				runtime.LockOSThread()
				_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP)
				runtime.UnlockOSThread()
			}
			if name == kill {
				_ = unix.Kill(os.Getpid(), unix.SIGKILL)
				select {}
			}
		},
	}
	if d, err := time.ParseDuration(os.Getenv(envAnswer)); err == nil {
		m.cfg.Answer = d
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		words := strings.Fields(in.Text())
		answer, err := m.do(words[0], words[1:])
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		say("%s", strings.TrimSpace("answer "+answer))
	}
}

func (m *member) do(what string, args []string) (string, error) {
	arg := func(i int) int {
		n, _ := strconv.Atoi(args[i])
		return n
	}
	switch what {
	case "join":
		ctx := context.Background()
		if len(args) > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, time.Duration(arg(0))*time.Millisecond)
			defer cancel()
		}
		g, err := Join(ctx, m.cfg)
		if err != nil {
			return "", err
		}
		m.g = g
		return fmt.Sprint(g.Slot()), nil
	case "close":
		return "", m.g.Close()
	case "members":
		var list []string
		for _, x := range m.g.Members() {
			list = append(list, strconv.Itoa(x.Slot))
		}
		return strings.Join(list, " "), nil
	case "pids":
		var list []string
		for _, x := range m.g.Members() {
			list = append(list, strconv.Itoa(x.PID))
		}
		return strings.Join(list, " "), nil
	case "sockets":
		s, err := m.g.Sockets(netip.MustParseAddr(args[0]), makeSockets(arg(1)))
		if err != nil {
			return "", err
		}
		m.fds = append(m.fds, s.Own, s.Control)
		a, err := unix.Getsockname(s.Control)
		if err != nil {
			return "", err
		}
		return fmt.Sprint(a.(*unix.SockaddrInet4).Port), nil
	case "close-sockets":
		closeFDs(m.fds)
		m.fds = nil
	case "drop":
		return "", m.g.Drop(netip.MustParseAddr(args[0]))
	case "claim": // name space addr flags
		p, err := m.g.ClaimPort(uint16(arg(1)), netip.MustParseAddrPort(args[2]), driver.ClaimFlags(arg(3)))
		if err == nil {
			m.ports[args[0]] = p
		}
		return "", err
	case "refused": // addr
		_, err := m.g.ClaimPort(262, netip.MustParseAddrPort(args[0]), 0)
		if !errors.Is(err, unix.EADDRINUSE) {
			return "", fmt.Errorf("not refused: %w", err)
		}
	case "mads":
		m.g.ServeMADs(true)
	case "listen":
		return "", m.ports[args[0]].Listen(true)
	case "release":
		m.ports[args[0]].Release()
	case "record": // name, remote ID
		bits, _ := m.g.CommIDs()
		r := driver.ConnRecord{Local: lo4, Remote: lo4, LocalID: bits | 1, RemoteID: uint32(arg(1))}
		if h := m.conns[args[0]]; h != nil {
			h.Update(&r)
			return "", nil
		}
		h, err := m.g.RecordConn(&r)
		m.conns[args[0]] = h
		return "", err
	case "unrecord":
		m.conns[args[0]].Release()
	case "send":
		to := arg(0)
		if args[0] == "self" {
			to = m.g.Slot()
		}
		return "", m.g.Send(to, []byte(args[1]))
	case "recv":
		b := make([]byte, 100)
		n, err := m.g.Recv(b)
		return string(b[:n]), err
	case "pass": // a buffer of the pool to the first slot
		buf, ok := m.g.PoolGet()
		if !ok {
			return "", errors.New("no buffer")
		}
		if m.g.Slot() == 1 || !m.g.PoolPass(buf, 1) {
			m.g.PoolPut(buf)
			return "", nil
		}
		return "", m.g.Send(1, fmt.Append(nil, "buf ", buf))
	case "fill": // slot, n, sent: passes n buffers and tells of the first of them, each with its own number in it
		for i := range arg(1) {
			buf, ok := m.g.PoolGet()
			if !ok || !m.g.PoolPass(buf, arg(0)) {
				return "", errors.New("no buffer, or not passed")
			}
			m.g.PoolBytes(buf)[0] = byte(i + 1)
			if i < arg(2) {
				if err := m.g.Send(arg(0), fmt.Append(nil, "buf ", buf)); err != nil {
					return "", err
				}
			}
		}
	case "read": // n messages; the numbers in their buffers
		var list []string
		b := make([]byte, 100)
		for range arg(0) {
			n, err := m.g.Recv(b)
			if err != nil {
				return "", err
			}
			var buf int
			if _, err := fmt.Sscanf(string(b[:n]), "buf %d", &buf); err != nil || !m.g.PoolMine(buf) {
				list = append(list, "not mine")
				continue
			}
			list = append(list, strconv.Itoa(int(m.g.PoolBytes(buf)[0])))
			m.g.PoolPut(buf)
		}
		return strings.Join(list, " "), nil
	case "pool": // how many buffers are not free when all messages were read
		b := make([]byte, 100)
		for {
			n, err := m.g.Recv(b)
			if err != nil {
				break
			}
			var buf int
			if _, err := fmt.Sscanf(string(b[:n]), "buf %d", &buf); err == nil && m.g.PoolMine(buf) {
				m.g.PoolPut(buf)
			}
		}
		n := 0
		for i := range PoolBufs {
			if m.g.d.ownerAlive(m.g.d.load(poolAt + i)) {
				n++
			}
		}
		return strconv.Itoa(n), nil
	case "steward":
		return fmt.Sprint(m.g.Steward()), nil
	case "storm": // rounds
		return m.storm(arg(0))
	case "squat": // uid
		fd, err := bindName(m.as(args[0]).name)
		if err != nil {
			return "", err
		}
		return "", unix.Listen(fd, 1)
	case "hold": // uid, interface
		_, err := bindName(strings.TrimSuffix(m.as(args[0]).name, "1") + args[1])
		return "", err
	case "squat-slots": // group
		for slot := 2; slot < Slots; slot++ {
			if _, err := selfSocket(args[0] + "/" + strconv.Itoa(slot)); err != nil {
				return "", err
			}
		}
	case "cycle": // n: a life of a device, n times
		n := func() int {
			list, _ := os.ReadDir("/proc/self/fd")
			return len(list)
		}
		before := n()
		for i := range arg(0) {
			g, err := Join(context.Background(), m.cfg)
			if err != nil {
				return "", fmt.Errorf("life %d: %w", i, err)
			}
			s, err := g.Sockets(lo4, makeSockets(Slots))
			if err != nil {
				return "", fmt.Errorf("life %d: %w", i, err)
			}
			closeFDs([]int{s.Own, s.Control})
			if err := g.Close(); err != nil {
				return "", err
			}
		}
		return fmt.Sprint(n() - before), nil
	case "ask":
		return "", m.as(args[0]).ask(context.Background())
	case "knock":
		fd, err := dial(m.as(args[0]).name)
		if err != nil {
			return "", err
		}
		defer closeFD(fd)
		if err := readable(fd, childPatience); err != nil {
			return "", err
		}
		var b [answerLen]byte
		_, fds, err := recvFDs(fd, b[:], 0)
		status, uid := binary.NativeEndian.Uint32(b[answerStatus:]), binary.NativeEndian.Uint32(b[answerUID:])
		return fmt.Sprintf("status %d of %d, %d descriptors", status, uid, len(fds)), err
	case "spoil":
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|sockFlags, 0)
		if err != nil {
			return "", err
		}
		defer closeFD(fd)
		return "", unix.Sendto(fd, []byte("x"), 0, abstract(args[0]))
	case "exhaust":
		for {
			if _, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0); err != nil {
				return "", nil
			}
		}
	case "limits":
		return m.limits(arg(0), arg(1))
	case "filesize":
		return "", unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(arg(0)), Max: uint64(arg(0))})
	case "limit":
		return "", unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(arg(0)), Max: uint64(arg(0))})
	default:
		return "", errors.New("what?")
	}
	return "", nil
}

// A process is a member in a process of its own.
type process struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // closed when it has ended

	mu     sync.Mutex
	events []string
}

// start starts a member; settings are environment variables.
func start(t testing.TB, private string, attr *syscall.SysProcAttr, settings ...string) *process {
	t.Helper()
	var err error
	// By this name other users can start it too, wherever it lies.
	p := &process{t: t, cmd: exec.Command("/proc/self/exe"), lines: make(chan string, 16)}
	p.cmd.Env = append(append(os.Environ(), envChild+"="+private), settings...)
	p.cmd.SysProcAttr = attr
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Skipf("a process cannot be started so: %v", err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(p.lines)
		s := bufio.NewScanner(out)
		for s.Scan() {
			if line, ok := strings.CutPrefix(s.Text(), "event "); ok {
				p.mu.Lock()
				p.events = append(p.events, line)
				p.mu.Unlock()
				continue
			}
			line, _ := strings.CutPrefix(s.Text(), "answer")
			p.lines <- strings.TrimSpace(line)
		}
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		for range p.lines { // until it has ended
		}
		<-read
		_ = p.cmd.Wait()
	})
	return p
}

const childPatience = 20 * time.Second

// try has it do something; false: it died at it.
func (p *process) try(format string, args ...any) (string, bool) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		return "", false
	}
	select {
	case line, ok := <-p.lines:
		return line, ok
	case <-time.After(childPatience):
		p.t.Fatalf("no answer to %q", fmt.Sprintf(format, args...))
	}
	return "", false
}

// do has it do something, without error.
func (p *process) do(format string, args ...any) string {
	p.t.Helper()
	line, ok := p.try(format, args...)
	if !ok {
		p.t.Fatalf("it died at %q", fmt.Sprintf(format, args...))
	}
	if strings.HasPrefix(line, "error") {
		p.t.Fatalf("%q: %s", fmt.Sprintf(format, args...), line)
	}
	return line
}

// fails has it do something that fails.
func (p *process) fails(want error, format string, args ...any) {
	p.t.Helper()
	line, ok := p.try(format, args...)
	if !ok || !strings.HasPrefix(line, "error") || !strings.Contains(line, want.Error()) {
		p.t.Fatalf("%q: %q, %v; want error %q", fmt.Sprintf(format, args...), line, ok, want)
	}
}

func (p *process) has(event string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.events, event)
}

func (p *process) told(prefix string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []string
	for _, e := range p.events {
		if rest, ok := strings.CutPrefix(e, prefix); ok {
			list = append(list, rest)
		}
	}
	return list
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
	if s == syscall.SIGSTOP {
		p.stopped()
	}
}

// stopped waits until it has stopped.
func (p *process) stopped() {
	p.t.Helper()
	var info unix.Siginfo
	if err := unix.Waitid(unix.P_PID, p.cmd.Process.Pid, &info, unix.WSTOPPED|unix.WNOWAIT, nil); err != nil {
		p.t.Fatal(err)
	}
}

// dead waits until it has ended.
func (p *process) dead() {
	p.t.Helper()
	for {
		select {
		case _, ok := <-p.lines:
			if !ok {
				return
			}
		case <-time.After(childPatience):
			p.t.Fatal("it lives")
		}
	}
}
