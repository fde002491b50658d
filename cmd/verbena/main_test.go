package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
)

// asCommand set in the environment makes the test binary be the command: tests
// run real processes without building anything.
const asCommand = "VERBENA_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		os.Exit(run())
	}
	os.Exit(m.Run())
}

// patience is how long a process may take on a busy machine.
const patience = 60 * time.Second

// command prepares a process of the command.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, exe, args...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	cmd.WaitDelay = time.Second
	return cmd
}

// result is how a process ended.
type result struct {
	code           int
	stdout, stderr string
}

// verbena runs the command.
func verbena(t *testing.T, args ...string) result {
	t.Helper()
	cmd := command(t, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// want fails the test unless the process ended with the code.
func (r result) want(t *testing.T, code int) result {
	t.Helper()
	if r.code != code {
		t.Fatalf("exit code %d, want %d\n%s%s", r.code, code, r.stdout, r.stderr)
	}
	return r
}

// loopAddr picks a loopback address that other tests do not use at the moment.
func loopAddr() netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(10 + rand.IntN(200)), byte(rand.IntN(256)), byte(1 + rand.IntN(250))})
}

func TestVersion(t *testing.T) {
	t.Parallel()
	for _, arg := range []string{"version", "--version"} {
		if r := verbena(t, arg).want(t, cli.ExitOK); !strings.HasPrefix(r.stdout, "verbena ") || strings.Count(r.stdout, "\n") != 1 {
			t.Errorf("%s: %q", arg, r.stdout)
		}
	}
}

func TestHelp(t *testing.T) {
	t.Parallel()
	r := verbena(t).want(t, cli.ExitOK)
	for _, s := range []string{"asyncwatch", "demo", "devices", "dump", "pingpong", "version"} {
		if !strings.Contains(r.stdout, "  "+s+" ") {
			t.Errorf("the help does not tell of %s:\n%s", s, r.stdout)
		}
	}
	if strings.Contains(r.stdout, demoPeerName) {
		t.Error("the help tells of the hidden command")
	}
}

// Wrong usage: exit code 2, a message that names the mistake, nothing on stdout.
func TestUsage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, say string }{
		{"nothing", "there is no verbena nothing"},
		{"devicse", "did you mean devices"},
		{"pingpong xrc", "there is no verbena pingpong xrc"},
		{"version 1", "too many arguments: 1"},
		{"devices extra", "extra"},
		{"asyncwatch a b", "too many arguments: b"},
		{"asyncwatch -d a b", "twice"},
		{"devices -x", "-x"},
		{"devices -v --json", "exclude"},
		{"demo file other", "too many arguments: other"},
		{"demo file --file other", "twice"},
		{"demo --size 99999999", "--size 99999999:"},
		{"demo --size -1", "--size"},
		{"demo --pings -1", "--pings"},
		{"demo --addr here", "not an IP address"},
		{"demo --peer-addr here", "--peer-addr here"},
		{"demo --addr ::1 --peer-addr 127.0.0.1", "one family"},
		{"demo --damage all", "--damage"},
		{"pingpong rc a b", "too many arguments: b"},
		{"pingpong rc -p 70000", "-p/--port 70000"},
		{"pingpong rc -p 0", "-p/--port 0"},
		{"pingpong rc -s 0", "-s/--size 0"},
		{"pingpong rc -s many", "many"},
		{"pingpong rc -m 1500", "256, 512, 1024, 2048 or 4096"},
		{"pingpong uc -r 0", "-r/--rx-depth"},
		{"pingpong uc -n 0", "-n/--iters"},
		{"pingpong uc -o", "-o"},
		{"pingpong ud -m 1024", "-m"},
		{"pingpong ud -i 0", "-i/--ib-port"},
		{"pingpong ud -g -1", "-g/--gid-idx"},
		{"pingpong ud -l 16", "-l/--sl"},
		{"pingpong srq -q 256", "-q/--num-qp 256"},
		{"pingpong srq -q 16 -r 15", "too small for 16 queue pairs"},
		{"pingpong rc --addr x", "not an IP address"},
	} {
		r := verbena(t, strings.Fields(c.args)...)
		if r.code != cli.ExitUsage || !strings.Contains(r.stderr, c.say) || !strings.HasPrefix(r.stderr, "verbena: ") || r.stdout != "" {
			t.Errorf("%s: exit code %d, want it to say %q:\n%s%s", c.args, r.code, c.say, r.stdout, r.stderr)
		}
	}
}

// An address of another interface than the one that -d names is a mistake.
func TestAddressOfAnotherInterface(t *testing.T) {
	t.Parallel()
	ifs, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range ifs {
		if i.Flags&net.FlagLoopback != 0 {
			continue
		}
		r := verbena(t, "pingpong", "rc", "--addr", "127.0.0.1", "-d", i.Name).want(t, cli.ExitUsage)
		if !strings.Contains(r.stderr, "not of -d "+i.Name) {
			t.Error(r.stderr)
		}
		return
	}
	t.Skip("there is only the loopback interface")
}

// What cannot be done: exit code 1 and what to do next.
func TestFailures(t *testing.T) {
	t.Parallel()
	a := loopAddr().String()
	for _, c := range []struct{ args, say string }{
		{"devices -d nothing", "There are: "},
		{"asyncwatch nothing", "there is no device or interface nothing"},
		{"pingpong rc -d nothing", "nothing"},
		{"pingpong rc -o", "ODP"},
		{"pingpong rc -O", "ODP"},
		{"pingpong rc -P", "prefetch"},
		{"pingpong rc -t", "timestamp"},
		{"pingpong rc -j", "gives device memory"},
		{"pingpong srq -o", "ODP"},
		{"pingpong rc -i 2 --addr " + a, "the device has port 1 only"},
		{"pingpong rc -g 7 --addr " + a, "verbena devices -v"},
		{"pingpong rc --addr 192.0.2.77", "192.0.2.77"},
		{"pingpong ud -s 4097 --addr " + a, "larger than the active MTU 4096"},
		{"pingpong rc -p 1 --addr " + a + " 127.0.0.1", "Start the server first"},
		{"demo --addr 192.0.2.77 --peer-addr 192.0.2.78", "--peer-addr"},
	} {
		r := verbena(t, strings.Fields(c.args)...)
		if r.code != cli.ExitFailed || !strings.Contains(r.stderr, c.say) {
			t.Errorf("%s: exit code %d, want it to say %q:\n%s%s", c.args, r.code, c.say, r.stdout, r.stderr)
		}
	}
}

func TestErrors(t *testing.T) {
	err := fmt.Errorf("wrapped: %w", cli.Usagef("bad"))
	for _, c := range []struct {
		err  error
		code int
	}{{nil, 0}, {errors.New("x"), 1}, {err, 2}, {cli.Hint(err, "y"), 2}, {context.Canceled, 1}} {
		if got := cli.ExitCode(c.err); got != c.code {
			t.Errorf("%v: %d", c.err, got)
		}
	}
	if s := cli.Describe(cli.Hint(errors.New("a"), "b %d", 1)); s != "a\n  b 1" {
		t.Errorf("%q", s)
	}
	if s := cli.Describe(fmt.Errorf("x: %w", context.Canceled)); s != "interrupted" {
		t.Errorf("%q", s)
	}
}
