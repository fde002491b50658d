package host

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// whole is what a member does in its life, all that others can see.
var whole = []string{
	"join",
	"mads",
	"sockets 127.0.0.1 128",
	"sockets 127.0.0.2 1",
	"claim p 262 127.0.0.1:7471 0",
	"claim q 262 0.0.0.0:7472 1",
	"refused 127.0.0.1:7471",
	"listen q",
	"listen p",
	"claim r 262 127.0.0.1:7473 0",
	"release r",
	"record x 7",
	"record y 8",
	"record y 9",
	"unrecord x",
	"send self hello",
	"pass",
	"drop 127.0.0.2",
	"close",
}

// live has a member live until it dies; it reports at which command it did, "" if not.
func live(p *process, list []string) string {
	p.t.Helper()
	for _, cmd := range list {
		line, ok := p.try("%s", cmd)
		if !ok {
			return cmd
		}
		if strings.HasPrefix(line, "error") {
			p.t.Errorf("%q: %s", cmd, line)
		}
	}
	return ""
}

// unit lists the steps of a life, in order, each once.
func steps(t *testing.T, name string, list []string, before ...*process) []string {
	p := start(t, name, nil, envSteps+"=1")
	if cmd := live(p, list); cmd != "" {
		t.Fatalf("it died at %q", cmd)
	}
	_ = before
	var unit []string
	for _, s := range p.told("step ") {
		if !slices.Contains(unit, s) {
			unit = append(unit, s)
		}
	}
	return unit
}

// afterwards has another process do all that the dead one did or was about to do.
func afterwards(t *testing.T, name string) {
	t.Helper()
	p := start(t, name, nil)
	if cmd := live(p, whole); cmd != "" {
		t.Errorf("the next one died at %q", cmd)
	}
}

// A process dies at each step of what it does alone, as the only member: who comes next
// finds everything free.
func TestKilledAlone(t *testing.T) {
	name := private(t)
	list := steps(t, name, whole)
	if len(list) < 35 {
		t.Fatalf("only %d steps: %v", len(list), list)
	}
	for _, step := range list {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			name := private(t)
			p := start(t, name, nil, envKill+"="+step)
			if live(p, whole) == "" {
				t.Fatal("it lives")
			}
			afterwards(t, name)
		})
	}
}

// A process dies at each step of what it does as one of several: the others go on, bury it
// if it had begun to be a member, and its connections are told whole or not at all.
func TestKilledBesideOthers(t *testing.T) {
	name := private(t)
	a := start(t, name, nil)
	a.do("join")
	for _, step := range steps(t, name, whole) {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			name := private(t)
			a := start(t, name, nil)
			a.do("join")
			p := start(t, name, nil, envKill+"="+step)
			cmd := live(p, whole)
			if cmd == "" {
				t.Fatal("it lives")
			}
			eventually(t, "it is not there any more", func() bool { return a.do("members") == "1" })
			eventually(t, "all buffers are free", func() bool { return a.do("pool") == "0" })
			afterwards(t, name)
			want := map[string][]string{
				"record x 7": {"", "7"}, "record y 8": {"7", "7 8"}, "record y 9": {"7 8", "7 9"}, "unrecord x": {"7 9", "9"},
				"send self hello": {"9"}, "pass": {"9"}, "drop 127.0.0.2": {"9"}, "close": {"9"},
			}[cmd]
			if want == nil {
				want = []string{""}
			}
			deaths := a.told("death ")
			if cmd != "join" && cmd != "close" && len(deaths) != 1 || len(deaths) > 1 {
				t.Fatalf("it died at %q, deaths %q", cmd, deaths)
			}
			for _, d := range deaths {
				var slot int
				var conns string
				if n, err := fmt.Sscanf(d, "%d", &slot); n != 1 || err != nil || slot != 2 {
					t.Errorf("death %q", d)
				}
				conns = strings.TrimSuffix(strings.TrimPrefix(d, "2 ["), "]")
				if !slices.Contains(want, conns) {
					t.Errorf("it died at %q: its connections were %q, want one of %q", cmd, conns, want)
				}
			}
		})
	}
}

// A sender that is killed between passing buffers and telling of them, not the steward and to one
// who is not either: what it has told of arrives, all its buffers are free when the mailbox was
// read, and not before: they may be in messages. A reader that is killed takes nothing with it.
func TestKilledPassing(t *testing.T) {
	name := private(t)
	steward, to, from := start(t, name, nil), start(t, name, nil), start(t, name, nil)
	for i, p := range []*process{steward, to, from} {
		if got := p.do("join"); got != fmt.Sprint(i+1) {
			t.Fatalf("slot %s", got)
		}
	}
	from.do("fill 2 5 3")
	from.signal(syscall.SIGKILL)
	from.dead()
	eventually(t, "it is buried", func() bool { return steward.do("members") == "1 2" })
	if got := to.do("read 3"); got != "1 2 3" {
		t.Errorf("arrived: %q", got)
	}
	if got := to.do("pool"); got != "0" {
		t.Errorf("%s buffers are left", got)
	}
	next := start(t, name, nil)
	if got := next.do("join"); got != "3" {
		t.Fatalf("slot %s", got)
	}
	next.do("fill 2 3 3")
	to.signal(syscall.SIGKILL)
	to.dead()
	eventually(t, "it is buried", func() bool { return steward.do("members") == "1 3" })
	if got := steward.do("pool"); got != "0" {
		t.Errorf("%s buffers are left", got)
	}
	// Who has its slot now gets none of its messages.
	again := start(t, name, nil)
	if got := again.do("join"); got != "2" {
		t.Fatalf("slot %s", got)
	}
	next.do("fill 2 1 1")
	if got := again.do("read 1"); got != "1" {
		t.Errorf("the slot's next owner read %q", got)
	}
}

// The steward dies at each step of letting somebody in, and of burying somebody: the next one
// does it.
func TestStewardKilledAtWork(t *testing.T) {
	// What a steward does while another one comes and dies.
	work := func(t *testing.T, name string, settings ...string) (a, b *process) {
		t.Helper()
		a = start(t, name, nil, settings...)
		if a.do("join") != "1" {
			t.Fatal("it is not the first one")
		}
		return a, start(t, name, nil)
	}
	a, b := work(t, private(t), envSteps+"=1")
	b.do("join")
	b.do("record x 3")
	b.do("sockets 127.0.0.1 128")
	b.signal(syscall.SIGKILL)
	b.dead()
	eventually(t, "it is buried", func() bool { return a.has("step bury:done") && a.has("step empty:done") })
	var unit []string
	for _, s := range a.told("step ") {
		if !slices.Contains(unit, s) && (strings.HasPrefix(s, "bury") || strings.HasPrefix(s, "answer") || strings.HasPrefix(s, "empty")) {
			unit = append(unit, s)
		}
	}
	if len(unit) != 13 {
		t.Fatalf("steps %v", unit)
	}
	for _, step := range unit {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			name := private(t)
			a, b := work(t, name, envKill+"="+step)
			b.do("join") // if its steward dies meanwhile it is let in by another one, or founds
			if strings.HasPrefix(step, "answer") {
				a.dead()
				eventually(t, "it is the steward", func() bool { return b.do("steward") == "true" })
				afterwards(t, name)
				return
			}
			c := start(t, name, nil)
			c.do("join")
			b.do("record x 3")
			b.do("sockets 127.0.0.1 128")
			b.signal(syscall.SIGKILL)
			a.dead() // of burying b
			eventually(t, "both are buried", func() bool { return c.do("members") == "3" })
			eventually(t, "the steward's end is told of", func() bool { return c.has("death 1 []") })
			eventually(t, "b's connection is told of", func() bool { return c.has("death 2 [3]") || a.has("death 2 [3]") })
			afterwards(t, name)
		})
	}
}

// successor is the steps of becoming the steward.
var successor = []string{"steward:begin", "steward:taken", "steward:told"}

// Each step that there is, is one at which these tests end a process.
func TestEveryStep(t *testing.T) {
	name := private(t)
	alone := steps(t, name, whole)
	start(t, name+"-2", nil).do("join")
	tested := slices.Concat(alone, steps(t, name+"-2", whole), successor)
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		for _, m := range regexp.MustCompile(`\.step\("([^"]*)"\)`).FindAllStringSubmatch(string(b), -1) {
			step := m[1]
			// TestStewardKilledAtWork takes all of these that happen.
			if !slices.Contains(tested, step) && !strings.HasPrefix(step, "bury:") && !strings.HasPrefix(step, "answer:") {
				t.Errorf("%s: nothing dies at %q", name, step)
			}
		}
	}
}

// A member dies at each step of becoming the steward.
func TestSuccessorKilled(t *testing.T) {
	for _, step := range successor {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			name := private(t)
			a, b := start(t, name, nil), start(t, name, nil, envKill+"="+step)
			a.do("join")
			b.do("join")
			a.signal(syscall.SIGKILL)
			b.dead()
			// Nobody is left: the next one founds.
			afterwards(t, name)
			// And with a third one.
			name += "-3"
			a, b = start(t, name, nil), start(t, name, nil, envKill+"="+step)
			c := start(t, name, nil)
			a.do("join")
			b.do("join")
			c.do("join")
			a.signal(syscall.SIGKILL)
			eventually(t, "the third one is the steward in the end, or the second one lives", func() bool {
				return c.do("steward") == "true" || strings.Contains(" "+c.do("members")+" ", " 2 ")
			})
			afterwards(t, name)
		})
	}
}
