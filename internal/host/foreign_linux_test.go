package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const stranger = 12345 // a user

func asUser(uid uint32) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, NoSetGroups: os.Getuid() != 0}}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root starts processes of other users")
	}
}

// Another user has a group of its own on the same interface.
func TestOtherUser(t *testing.T) {
	needRoot(t)
	name := private(t)
	g := mustJoin(t, Config{IfIndex: 1, Private: name})
	p := start(t, name, asUser(stranger))
	if slot := p.do("join"); slot != "1" {
		t.Errorf("slot %s", slot)
	}
	if p.do("members") != "1" || len(g.Members()) != 1 {
		t.Error("they see each other")
	}
}

// Whoever has taken our name is told apart by the kernel, and named.
func TestNameTakenByOtherUser(t *testing.T) {
	needRoot(t)
	name := private(t)
	p := start(t, name, asUser(stranger))
	p.do("squat 0")
	_, err := Join(context.Background(), Config{IfIndex: 1, Private: name})
	if !errors.Is(err, ErrForeign) || !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "user 12345") {
		t.Errorf("%v", err)
	}
	// Also if he does not even listen.
	p.do("hold 0 2")
	_, err = Join(context.Background(), Config{IfIndex: 2, Private: name})
	if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "user 12345") {
		t.Errorf("%v", err)
	}
}

// Another user who connects to us gets a refusal, and no descriptor.
func TestOtherUserIsRefused(t *testing.T) {
	needRoot(t)
	name := private(t)
	g := mustJoin(t, Config{IfIndex: 1, Private: name})
	p := start(t, name, asUser(stranger))
	if got := p.do("knock 0"); got != "status 1 of 0, 0 descriptors" {
		t.Error(got)
	}
	p.fails(ErrForeign, "ask 0")
	if s := g.Stats(); s.Refused != 2 && s.Refused != 1 || s.Answered != 0 {
		t.Errorf("%+v", s)
	}
	// Nor can he send to our mailboxes and slots.
	p.fails(unix.EPERM, "spoil %s/m1", g.groupName(g.id))
	p.fails(unix.EPERM, "spoil %s/root", g.groupName(g.id))
	p.fails(unix.EPERM, "spoil %s", g.slotName(1))
}

// The same user in another user namespace is refused, by itself.
func TestOtherUserNamespace(t *testing.T) {
	name := private(t)
	mustJoin(t, Config{IfIndex: 1, Private: name})
	uid, gid := os.Getuid(), os.Getgid()
	p := start(t, name, &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: gid, HostID: gid, Size: 1}},
	})
	p.fails(ErrForeign, "join")
	p.fails(errors.New("is in user namespace"), "join")
	// One whom nobody knows there.
	q := start(t, name, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER})
	q.fails(errors.New("stands for all that are not mapped"), "join")
}

// Ordinary users may have only so many descriptors in flight.
func TestDescriptorsInFlight(t *testing.T) {
	needRoot(t)
	name := private(t)
	// A user of its own: what others of the test have in flight counts for theirs.
	r, p := start(t, name, asUser(stranger+1)), start(t, name, asUser(stranger+1))
	r.do("join")
	p.do("limit 200")
	p.do("join")
	p.do("sockets 127.0.0.1 128")
	p.fails(ErrDescriptors, "sockets 127.0.0.2 128")
	p.do("claim p 262 127.0.0.1:7471 0") // the rest goes on
	r.do("sockets 127.0.0.2 128")
	// Who comes is let in by the one that can.
	q := start(t, name, asUser(stranger+1))
	q.do("join")
	q.do("sockets 127.0.0.2 128")
	// Without it nobody can, and tells so.
	q.do("close")
	r.do("close")
	q.fails(ErrDescriptors, "join 500")
	q.fails(fmt.Errorf("process %d", p.cmd.Process.Pid), "join 500")
}

// An answer is input.
func TestAnswers(t *testing.T) {
	me, err := whoami()
	if err != nil {
		t.Skip(err)
	}
	g := &Group{me: me}
	good := make([]byte, answerLen)
	binary.NativeEndian.PutUint64(good[answerMagic:], magic)
	binary.NativeEndian.PutUint32(good[answerLayout:], layout)
	binary.NativeEndian.PutUint64(good[answerUserNS:], me.userns[0])
	binary.NativeEndian.PutUint64(good[answerUserNS+8:], me.userns[1])
	if err := g.judge(good, 2); err != nil {
		t.Error(err)
	}
	for fds := range 4 {
		if err := g.judge(good, fds); fds != 2 && !errors.Is(err, ErrGarbage) {
			t.Errorf("%d descriptors: %v", fds, err)
		}
	}
	for n := range answerLen {
		if err := g.judge(good[:n], 2); !errors.Is(err, ErrGarbage) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	for _, c := range []struct {
		at   int
		want error
	}{{answerMagic, ErrGarbage}, {answerLayout, ErrVersion}, {answerStatus, ErrForeign}, {answerStatus + 1, ErrDescriptors}, {answerUserNS + 8, ErrForeign}} {
		bad := append([]byte(nil), good...)
		bad[c.at]++
		if err := g.judge(bad, 2); !errors.Is(err, c.want) {
			t.Errorf("byte %d: %v, want %v", c.at, err, c.want)
		}
	}
}

// Who has a name can be asked.
func TestHolder(t *testing.T) {
	name := private(t) + "/holder"
	if _, ok := holder(name); ok {
		t.Error("a name that nobody has")
	}
	fd, err := bindName(name)
	if err != nil {
		t.Fatal(err)
	}
	defer closeFD(fd)
	if uid, ok := holder(name); !ok || uid != uint32(os.Getuid()) {
		t.Errorf("user %d, %v", uid, ok)
	}
}

// What the kernel tells is read with care all the same.
func FuzzDiagSocket(f *testing.F) {
	f.Add(make([]byte, 40))
	f.Add(append(make([]byte, diagMsgLen), 8, 0, 7, 0, 1, 2, 3, 4, 6, 0, 0, 0, 0, 'x', 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		if name, _, ok := diagSocket(b); ok && name == "" {
			t.Error("no name")
		}
	})
}

// as changes whose group a member goes to.
func (m *member) as(uid string) *Group {
	me, _ := whoami()
	g := &Group{cfg: m.cfg, me: me, name: "verbena" + m.cfg.Private + "." + uid + ".1"}
	g.cfg.setDefaults()
	return g
}

// Another user who takes the names of all slots keeps us out, and is named.
func TestSlotNamesTakenByOtherUser(t *testing.T) {
	needRoot(t)
	name := private(t)
	g := mustJoin(t, Config{IfIndex: 1, Private: name})
	p := start(t, name, asUser(stranger))
	p.do("squat-slots %s", g.groupName(g.id))
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := Join(ctx, Config{IfIndex: 1, Private: name})
	if !errors.Is(err, ErrForeign) || !strings.Contains(err.Error(), "user 12345") {
		t.Errorf("%v", err)
	}
	if _, err := g.ClaimPort(262, netip.MustParseAddrPort("127.0.0.1:7471"), 0); err != nil {
		t.Error(err)
	}
}

// A device that comes and goes a thousand times, in the group's only process and beside another one, leaves no descriptor
// behind, also none in flight: an ordinary user may have only few of these.
func TestThousandLives(t *testing.T) {
	needRoot(t)
	n := 1000
	if testing.Short() {
		n = 50
	}
	name := private(t)
	p := start(t, name, asUser(stranger+2))
	p.do("limit 500")
	p.do("cycle 1") // what the runtime needs
	if left := p.do("cycle %d", n); left != "0" {
		t.Errorf("alone: %s descriptors", left)
	}
	q := start(t, name, asUser(stranger+2))
	q.do("limit 500")
	q.do("join")
	if left := p.do("cycle %d", n); left != "0" {
		t.Errorf("beside another one: %s descriptors", left)
	}
	eventually(t, "nobody but one is there", func() bool { return q.do("members") == "1" })
}

// Processes in several PID namespaces, which share the network: they are told apart, and
// those that die are noticed. What a process is called is only told where it has a name.
func TestOtherPIDNamespace(t *testing.T) {
	needRoot(t)
	name := private(t)
	own := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	a, p, q := start(t, name, nil), start(t, name, own), start(t, name, own)
	for _, x := range []*process{a, p, q} {
		x.do("join")
	}
	if got := fmt.Sprintf("%d %d %d", a.cmd.Process.Pid, p.cmd.Process.Pid, q.cmd.Process.Pid); a.do("pids") != got || p.do("pids") != "0 1 0" {
		t.Errorf("processes %s", p.do("pids"))
	}
	p.do("claim p 262 127.0.0.1:7471 0")
	p.do("record x 7")
	q.fails(errors.New("127.0.0.1:7471: "+unix.EADDRINUSE.Error()), "claim p 262 127.0.0.1:7471 0")
	if line, _ := q.try("claim p 262 127.0.0.1:7471 0"); strings.Contains(line, "process") {
		t.Errorf("%q, which has no name here", line)
	}
	a.fails(fmt.Errorf("by process %d", p.cmd.Process.Pid), "claim p 262 127.0.0.1:7471 0")
	p.signal(syscall.SIGSTOP)
	q.fails(unix.EADDRINUSE, "claim p 262 127.0.0.1:7471 0")
	p.signal(syscall.SIGKILL)
	eventually(t, "it is buried", func() bool { return a.has("death 2 [7]") })
	q.do("claim p 262 127.0.0.1:7471 0")
	a.signal(syscall.SIGKILL)
	eventually(t, "the one that is left buries", func() bool { return q.has("death 1 []") && q.do("members") == "3" })
}

// Files may not be large: an error that says so, no signal.
func TestSmallFiles(t *testing.T) {
	name := private(t)
	p, q := start(t, name, nil), start(t, name, nil)
	p.do("filesize 1000000")
	p.fails(ErrFileSize, "join")
	q.do("join")
	p.do("join") // what is there can be used
	p.do("sockets 127.0.0.1 128")
	p.do("record x 7")
	p.do("pass")
	p.do("close")
}
