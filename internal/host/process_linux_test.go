package host

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// private is the prefix of names of one test.
func private(t testing.TB) string { return testConfig(t).Private }

// A member that dies is noticed at once, its connections are told, and its slot is given
// away only then, with another generation.
func TestDeath(t *testing.T) {
	name := private(t)
	a, b, c := start(t, name, nil), start(t, name, nil), start(t, name, nil)
	a.do("join")
	b.do("join")
	c.do("join")
	b.do("record x 7")
	b.do("record y 8")
	b.do("record y 9")
	b.do("record z 10")
	b.do("unrecord x")
	b.do("claim p 262 127.0.0.1:7471 0")
	c.fails(syscall.EADDRINUSE, "claim p 262 127.0.0.1:7471 0")
	c.fails(fmt.Errorf("process %d", b.cmd.Process.Pid), "claim p 262 127.0.0.1:7471 0")
	b.do("send 3 before")
	c.do("send 2 late") // nobody will read it
	b.signal(syscall.SIGKILL)
	b.dead()
	eventually(t, "the steward tells of the death", func() bool { return a.has("death 2 [9 10]") })
	c.do("claim p 262 127.0.0.1:7471 0")
	eventually(t, "two are left", func() bool { return a.do("members") == "1 3" })
	if got := c.do("recv"); got != "before" {
		t.Errorf("got %q", got)
	}
	d := start(t, name, nil)
	eventually(t, "the slot is free", func() bool {
		got := d.do("join")
		if got != "2" {
			d.do("close")
		}
		return got == "2"
	})
	d.fails(unix.EAGAIN, "recv")
	if c.told("death") != nil {
		t.Error("one who is not the steward buries")
	}
}

// Who cannot say goodbye for the dead is asked again, or the next one is.
func TestGoodbyeFails(t *testing.T) {
	name := private(t)
	a, b, c := start(t, name, nil, envFails+"=2"), start(t, name, nil), start(t, name, nil)
	a.do("join")
	b.do("join")
	c.do("join")
	b.do("record x 7")
	b.signal(syscall.SIGKILL)
	eventually(t, "it can in the end", func() bool { return a.has("death 2 [7]") })
	if len(a.told("failed 2")) != 2 {
		t.Error("it was not asked three times")
	}
	name += "-2"
	a, b, c = start(t, name, nil, envFails+"=1000000"), start(t, name, nil), start(t, name, nil)
	a.do("join")
	b.do("join")
	c.do("join")
	b.do("record x 7")
	b.signal(syscall.SIGKILL)
	eventually(t, "it fails", func() bool { return a.has("failed 2") })
	a.do("close")
	eventually(t, "the next steward says it", func() bool { return c.has("death 2 [7]") })
}

// The steward is killed: another one is it at once, and buries it.
func TestStewardKilled(t *testing.T) {
	name := private(t)
	a, b, c := start(t, name, nil), start(t, name, nil), start(t, name, nil)
	a.do("join")
	eventually(t, "the founder is the steward", func() bool { return a.do("steward") == "true" })
	b.do("join")
	c.do("join")
	a.do("record x 5")
	a.signal(syscall.SIGKILL)
	a.dead()
	eventually(t, "there is another steward, who tells of the death", func() bool {
		return b.has("death 1 [5]") && b.has("steward true") || c.has("death 1 [5]") && c.has("steward true")
	})
	if (b.do("steward") == "true") == (c.do("steward") == "true") {
		t.Error("none or two")
	}
}

// The steward is stopped: another one takes over when there is something to do, a datagram
// or a death, and the old one sees it when it goes on.
func TestStewardStopped(t *testing.T) {
	for _, what := range []string{"datagram", "death"} {
		t.Run(what, func(t *testing.T) {
			name := private(t)
			a, b, c := start(t, name, nil), start(t, name, nil), start(t, name, nil)
			a.do("join")
			port := a.do("sockets 127.0.0.1 1")
			b.do("join")
			c.do("join")
			eventually(t, "the founder is the steward", func() bool { return a.do("steward") == "true" })
			a.signal(syscall.SIGSTOP)
			if what == "datagram" {
				x, err := net.Dial("udp", "127.0.0.1:"+port)
				if err != nil {
					t.Fatal(err)
				}
				defer x.Close()
				if _, err := x.Write([]byte("x")); err != nil {
					t.Fatal(err)
				}
				eventually(t, "another steward", func() bool { return b.has("steward true") || c.has("steward true") })
			} else {
				c.signal(syscall.SIGKILL)
				c.dead()
				eventually(t, "another steward, who buries", func() bool { return b.has("steward true") && b.has("death 3 []") })
			}
			// Others come and go meanwhile.
			d := start(t, name, nil)
			d.do("join")
			d.do("sockets 127.0.0.1 1")
			d.do("close")
			a.signal(syscall.SIGCONT)
			eventually(t, "the old one sees it", func() bool { return a.has("steward false") })
			if a.do("steward") == "true" {
				t.Error("it is the steward")
			}
			if a.told("death") != nil || b.has("death 1 []") || c.has("death 1 []") {
				t.Error("one who was stopped was buried")
			}
		})
	}
}

// All are stopped: who comes is told so in time; when one goes on it gets in.
func TestAllStopped(t *testing.T) {
	name := private(t)
	a, b := start(t, name, nil), start(t, name, nil, envAnswer+"=20ms")
	a.do("join")
	a.signal(syscall.SIGSTOP)
	b.fails(ErrSilent, "join 200")
	b.fails(fmt.Errorf("process %d was the first", a.cmd.Process.Pid), "join 200")
	a.signal(syscall.SIGCONT)
	b.do("join")
}

// Fifty processes found one group.
func TestFoundByManyProcesses(t *testing.T) {
	n := 50
	if testing.Short() {
		n = 10
	}
	name := private(t)
	list := make([]*process, n)
	for i := range list {
		list[i] = start(t, name, nil)
	}
	for _, p := range list {
		if _, err := fmt.Fprintln(p.in, "join"); err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for _, p := range list {
		seen[<-p.lines] = true
	}
	for i := range n {
		if !seen[strconv.Itoa(i+1)] {
			t.Errorf("slot %d is nobody's", i+1)
		}
	}
	if got := len(strings.Fields(list[0].do("members"))); got != n {
		t.Errorf("%d members", got)
	}
	// The first half dies at once; the rest goes on.
	for _, p := range list[:n/2] {
		p.signal(syscall.SIGKILL)
	}
	last := list[n-1]
	eventually(t, "half of them is left", func() bool { return len(strings.Fields(last.do("members"))) == n-n/2 })
	eventually(t, "the end of each is told of", func() bool {
		deaths := map[string]bool{}
		for _, p := range list {
			for _, d := range p.told("death ") {
				deaths[d] = true
			}
		}
		return len(deaths) == n/2
	})
}

// Processes claim few ports at random, and die at random; no port is had twice. Each
// checks with names of the kernel's.
func TestClaimStorm(t *testing.T) {
	rounds := 1500
	if testing.Short() {
		rounds = 300
	}
	name := private(t)
	keeper := start(t, name, nil)
	keeper.do("join")
	var list []*process
	for range 4 {
		p := start(t, name, nil)
		p.do("join")
		list = append(list, p)
	}
	for range 3 {
		victim := start(t, name, nil)
		victim.do("join")
		_, _ = fmt.Fprintln(victim.in, "storm 1000000")
		for _, p := range list {
			_, _ = fmt.Fprintf(p.in, "storm %d\n", rounds)
		}
		got := 0
		for i, p := range list {
			line, ok := <-p.lines
			n, err := strconv.Atoi(line)
			if !ok || err != nil {
				t.Errorf("process %d: %q", i, line)
			}
			got += n
			if i == 1 {
				victim.signal(syscall.SIGKILL)
			}
		}
		if got == 0 {
			t.Error("nobody ever got a port")
		}
		victim.dead()
	}
	for i := range stormPorts {
		eventually(t, "the ports of the dead are free", func() bool {
			line, _ := keeper.try("claim p%d 262 127.0.0.1:%d 0", i, 100+i)
			return line == ""
		})
	}
}

const stormPorts = 3

func (m *member) storm(rounds int) (string, error) {
	got := 0
	for i := range rounds {
		n := i % stormPorts
		cmd := []string{"p", "262", "127.0.0.1:" + strconv.Itoa(100+n), "0"}
		if i%7 == 0 {
			cmd[2] = "0.0.0.0:" + strconv.Itoa(100+n)
		}
		if _, err := m.do("claim", cmd); err != nil {
			continue
		}
		got++
		fd, err := bindName(m.cfg.Private + "/oracle/" + strconv.Itoa(n))
		if err != nil {
			return "", fmt.Errorf("port %d is had twice: %w", n, err)
		}
		closeFD(fd)
		if _, err := m.do("release", []string{"p"}); err != nil {
			return "", err
		}
	}
	return strconv.Itoa(got), nil
}

// Few descriptors: an error that says so, and none is lost.
func (m *member) limits(from, to int) (string, error) {
	count := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			return -1
		}
		return len(list)
	}
	// The runtime's own descriptors first.
	if _, err := m.do("join", nil); err != nil {
		return "", err
	}
	if err := m.g.Close(); err != nil {
		return "", err
	}
	before, joined, used := count(), 0, 0
	for n := from; n <= to; n += 3 {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(n), Max: 4096}); err != nil {
			return "", err
		}
		_, err := m.do("join", nil)
		if err == nil {
			joined++
			var s string
			if s, err = m.do("sockets", []string{"127.0.0.1", "128"}); s != "" {
				used++
			}
			closeFDs(m.fds)
			m.fds = nil
			if err := m.g.Close(); err != nil {
				return "", err
			}
		}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 4096, Max: 4096}); err != nil {
			return "", err
		}
		if err != nil && !strings.Contains(err.Error(), "RLIMIT_NOFILE") && !strings.Contains(err.Error(), unix.EMFILE.Error()) {
			return "", fmt.Errorf("limit %d: %w", n, err)
		}
		if now := count(); now != before {
			return "", fmt.Errorf("limit %d: %d descriptors, %d before", n, now, before)
		}
	}
	return fmt.Sprint(joined > 0 && used > 0 && used < joined), nil
}

func TestFewDescriptors(t *testing.T) {
	p := start(t, private(t), nil)
	p.do("limit 4096")
	if got := p.do("limits 8 320"); got != "true" {
		t.Error("the limits were not those where it begins to fail")
	}
}

// A member that has no descriptor left lets others in and is watched.
func TestNoDescriptors(t *testing.T) {
	name := private(t)
	p, q, r := start(t, name, nil), start(t, name, nil), start(t, name, nil)
	p.do("limit 1000")
	p.do("join")
	p.do("exhaust")
	q.do("join")
	r.do("join")
	p.do("claim p 262 127.0.0.1:7471 0")
	p.fails(ErrDescriptors, "sockets 127.0.0.1 1")
	p.signal(syscall.SIGKILL)
	eventually(t, "it is buried", func() bool { return q.has("death 1 []") || r.has("death 1 []") })
}

// The steward is stopped and so many wait to be accepted by it that nobody can connect any
// more: another one takes over all the same.
func TestStoppedStewardIsCrowded(t *testing.T) {
	cfg := testConfig(t)
	a := start(t, cfg.Private, nil)
	a.do("join")
	port := a.do("sockets 127.0.0.1 1")
	eventually(t, "it is the steward", func() bool { return a.do("steward") == "true" })
	b := mustJoin(t, cfg)
	a.signal(syscall.SIGSTOP)
	var crowd []int
	defer func() { closeFDs(crowd) }()
	for {
		fd, err := dial(b.slotName(1))
		if errors.Is(err, unix.EMFILE) {
			t.Skip("too few descriptors")
		}
		if err != nil {
			break
		}
		crowd = append(crowd, fd)
	}
	c := mustJoin(t, cfg)
	b.Close() // c is the only one, and cannot connect
	x, err := net.Dial("udp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if _, err := x.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is the steward", c.Steward)
}
