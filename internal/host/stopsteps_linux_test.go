package host

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A process stops at each step of what it does, as after SIGSTOP or in a debugger. The others
// go on, except with the address that it is about to bring into use, and with
// the group that it is about to found: these are told so. It goes on itself when it may.
func TestStoppedAtEachStep(t *testing.T) {
	name := private(t)
	first := start(t, name, nil)
	first.do("join")
	list := steps(t, name, whole)
	if len(list) < 25 {
		t.Fatalf("only %v", list)
	}
	for _, step := range list {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			name := private(t)
			a := start(t, name, nil)
			a.do("join")
			p := start(t, name, nil, envStop+"="+step)
			for _, cmd := range whole {
				_, _ = fmt.Fprintln(p.in, cmd)
			}
			p.stopped()
			// Another one does the same, where it is no conflict.
			other := start(t, name, nil, envAnswer+"=50ms")
			mine := slices.Clone(whole)
			for i := range mine {
				mine[i] = strings.NewReplacer(":747", ":767", "127.0.0.1 128", "127.0.0.1 1").Replace(mine[i])
			}
			locked := step == "addr:locked" || step == "addr:made" || step == "addr:kept" || strings.HasPrefix(step, "drop:") || strings.HasPrefix(step, "empty:")
			for _, cmd := range mine {
				line, ok := other.try("%s", cmd)
				waits := locked && (strings.HasPrefix(cmd, "sockets") || strings.HasPrefix(cmd, "drop")) && strings.Contains(line, "does not get ahead")
				if !ok || strings.HasPrefix(line, "error") && !waits && !strings.HasPrefix(cmd, "drop") {
					t.Errorf("%q: %q, %v", cmd, line, ok)
				}
			}
			p.signal(syscall.SIGCONT)
			for _, cmd := range whole {
				line, ok := <-p.lines
				if !ok || strings.HasPrefix(line, "error") && !strings.HasPrefix(cmd, "drop") {
					t.Errorf("afterwards %q: %q, %v", cmd, line, ok)
				}
			}
		})
	}
}

// Who founds stops: others are told that they cannot, and can when it goes on or dies.
func TestFounderStopped(t *testing.T) {
	for _, step := range []string{"found:bound", "found:root", "claim:bound", "claim:live"} {
		for _, dies := range []bool{false, true} {
			t.Run(fmt.Sprint(step, dies), func(t *testing.T) {
				t.Parallel()
				name := private(t)
				a, b := start(t, name, nil, envStop+"="+step), start(t, name, nil)
				_, _ = fmt.Fprintln(a.in, "join")
				a.stopped()
				b.fails(ErrSilent, "join 100")
				if dies {
					a.signal(syscall.SIGKILL)
					a.dead()
				} else {
					a.signal(syscall.SIGCONT)
					<-a.lines
				}
				want := map[bool]string{true: "1", false: "2"}[dies]
				if got := b.do("join"); got != want {
					t.Errorf("slot %s", got)
				}
			})
		}
	}
}
