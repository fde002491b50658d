package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"
)

// roleVariable tells a copy of the program that it is one side of a measurement, and which.
const roleVariable = "VERBENA_BENCH_ROLE"

// A Role is the program of one side. It gets the value given to [StartChild], talks JSON values with the process that started it, and
// ends when it is done or when in is at its end.
type Role func(args json.RawMessage, in *json.Decoder, out *json.Encoder) error

// ServeRole plays the role that this process was started for and reports true; it reports false in a process that was started by
// a person. A main function calls it first.
func ServeRole(roles map[string]Role) (bool, error) {
	name := os.Getenv(roleVariable)
	if name == "" {
		return false, nil
	}
	role, ok := roles[name]
	if !ok {
		return true, fmt.Errorf("no role %q in this program", name)
	}
	in, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	var args json.RawMessage
	if err := in.Decode(&args); err != nil {
		return true, fmt.Errorf("%s: arguments: %w", name, err)
	}
	stop, err := profile(name)
	if err != nil {
		return true, err
	}
	defer stop()
	if err := role(args, in, out); err != nil {
		return true, fmt.Errorf("%s: %w", name, err)
	}
	return true, nil
}

// profileVariable names a directory for CPU profiles of the children, one file each.
const profileVariable = "VERBENA_BENCH_PROFILE"

// profile starts one if it is asked for.
func profile(role string) (stop func(), err error) {
	dir := os.Getenv(profileVariable)
	if dir == "" {
		return func() {}, nil
	}
	f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%s-%d.prof", strings.ReplaceAll(role, "/", "-"), os.Getpid())))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}

// A Child is a copy of this program that plays a [Role].
type Child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	enc *json.Encoder
	dec *json.Decoder
}

// StartChild starts a copy of this program pinned to a core, or to none ([AnyCore]). env adds to the environment ("GOMAXPROCS=2"). The caller closes it.
func StartChild(ctx context.Context, role string, core int, args any, env ...string) (*Child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := Pinned(ctx, core, self)
	cmd.Env = append(append(os.Environ(), env...), roleVariable+"="+role)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &Child{cmd: cmd, in: in, enc: json.NewEncoder(in), dec: json.NewDecoder(out)}
	if err := c.Write(args); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// AnyCore pins nothing.
const AnyCore = -1

// Pinned returns a command that runs on one core only, where the system has taskset; elsewhere on any.
func Pinned(ctx context.Context, core int, program string, args ...string) *exec.Cmd {
	if taskset, err := exec.LookPath("taskset"); err == nil && core != AnyCore {
		args = append([]string{"-c", strconv.Itoa(core), program}, args...)
		program = taskset
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = time.Second
	return cmd
}

// Read reads the next value that the child wrote.
func (c *Child) Read(v any) error { return c.dec.Decode(v) }

// Write hands the child a value.
func (c *Child) Write(v any) error { return c.enc.Encode(v) }

// Close ends the child's input and waits until it has ended; one that does not end within two seconds is killed.
func (c *Child) Close() error {
	_ = c.in.Close()
	kill := time.AfterFunc(2*time.Second, func() { _ = c.cmd.Process.Kill() })
	defer kill.Stop()
	return c.cmd.Wait()
}

// CPUTime returns the processor time of a command that has ended.
func CPUTime(cmd *exec.Cmd) time.Duration {
	if cmd.ProcessState == nil {
		return 0
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
}
