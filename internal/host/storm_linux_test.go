package host

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Members come, go, are killed, stopped and continued at random. Always: no slot is had
// twice, and what one claims nobody else can. In the end: only those who live are members, one of
// them is the steward, and every connection of the dead was told of.
func TestStorm(t *testing.T) {
	rounds := 400
	if testing.Short() {
		rounds = 100
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	name := private(t)

	type one struct {
		*process
		slot    string
		stopped bool
		conn    int
		port    string
	}
	var alive, all []*one
	conns := 0
	died := map[int]bool{} // connections of those who were killed
	ports := map[string]*one{}
	join := func() *one {
		p := &one{process: start(t, name, nil, envAnswer+"=20ms")}
		p.slot = p.do("join")
		for _, o := range alive {
			if o.slot == p.slot {
				t.Fatalf("slot %s twice", p.slot)
			}
		}
		alive, all = append(alive, p), append(all, p)
		return p
	}
	drop := func(p *one) {
		for i, o := range alive {
			if o == p {
				alive = append(alive[:i], alive[i+1:]...)
			}
		}
		delete(ports, p.port)
	}
	join()
	for range rounds {
		running := 0
		for _, p := range alive {
			if !p.stopped {
				running++
			}
		}
		if running < 2 && len(alive) > 1 {
			for _, p := range alive {
				if p.stopped {
					p.signal(syscall.SIGCONT)
					p.stopped = false
				}
			}
		}
		p := alive[r.IntN(len(alive))]
		switch what := r.IntN(12); {
		case what < 2 && len(alive) < 12 || len(alive) < 2:
			join()
		case what == 2:
			if p.conn != 0 {
				died[p.conn] = true
			}
			p.signal(syscall.SIGKILL)
			p.dead()
			drop(p)
		case p.stopped:
			if what < 8 {
				p.signal(syscall.SIGCONT)
				p.stopped = false
			}
		case what == 3 && running > 2:
			p.signal(syscall.SIGSTOP)
			p.stopped = true
		case what == 4 && running > 2:
			if p.conn != 0 {
				p.do("unrecord c")
			}
			p.do("close")
			drop(p)
		case what == 5 && p.conn == 0:
			conns++
			p.conn = conns
			p.do("record c %d", conns)
		case what == 6:
			p.do("sockets 127.0.0.%d %d", r.IntN(3)+1, []int{1, 128}[r.IntN(2)])
		case what == 7 && p.port != "":
			p.do("release p")
			delete(ports, p.port)
			p.port = ""
		case what < 10 && p.port == "":
			port := strconv.Itoa(100 + r.IntN(4))
			line, ok := p.try("claim p 262 127.0.0.1:%s 0", port)
			switch holder := ports[port]; {
			case !ok:
				t.Fatal("it died")
			case line == "" && holder != nil:
				t.Fatalf("%s has port %s of %s", p.slot, port, holder.slot)
			case line == "":
				ports[port], p.port = p, port
			case holder == nil:
				// The kernel may still be taking apart who had it.
				eventually(t, "the port is free", func() bool { return tryOnly(p.process, "claim p 262 127.0.0.1:%s 0", port) == "" })
				ports[port], p.port = p, port
			}
		}
	}
	for _, p := range alive {
		if p.stopped {
			p.signal(syscall.SIGCONT)
		}
	}
	want := map[string]bool{}
	for _, p := range alive {
		want[p.slot] = true
	}
	eventually(t, "only the living are members", func() bool {
		got := strings.Fields(alive[0].do("members"))
		for _, slot := range got {
			if !want[slot] {
				return false
			}
		}
		return len(got) == len(want)
	})
	eventually(t, "there is one steward", func() bool {
		n := 0
		for _, p := range alive {
			if p.do("steward") == "true" {
				n++
			}
		}
		return n == 1
	})
	for c := range died {
		eventually(t, fmt.Sprintf("somebody tells of the end of connection %d", c), func() bool {
			for _, p := range all {
				for _, d := range p.told("death ") {
					if strings.HasSuffix(d, fmt.Sprintf("[%d]", c)) {
						return true
					}
				}
			}
			return false
		})
	}
	t.Logf("%d processes, %d connections, %d of the dead", len(all), conns, len(died))
}

// tryOnly has a process do something that may fail.
func tryOnly(p *process, format string, args ...any) string {
	line, ok := p.try(format, args...)
	if !ok {
		p.t.Fatal("it died")
	}
	return line
}
