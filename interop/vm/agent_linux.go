package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/interop/vm/proto"
)

// agent is the host's end of the conversation with the guest.
type agent struct {
	conn net.Conn

	mu      sync.Mutex // guards what follows, and writes to conn
	last    uint64
	waiting map[uint64]chan proto.Response
	err     error // why the conversation ended
}

func newAgent(conn net.Conn) *agent {
	a := &agent{conn: conn, waiting: map[uint64]chan proto.Response{0: make(chan proto.Response, 1)}}
	go a.read()
	return a
}

func (a *agent) close() { _ = a.conn.Close() }

func (a *agent) read() {
	in := bufio.NewReaderSize(a.conn, 1<<16)
	for {
		var r proto.Response
		line, err := in.ReadBytes('\n')
		if err == nil {
			err = json.Unmarshal(line, &r)
		}
		a.mu.Lock()
		if err != nil {
			a.err = fmt.Errorf("the guest's agent is gone: %w", err)
			for _, c := range a.waiting {
				close(c)
			}
			a.waiting = nil
			a.mu.Unlock()
			return
		}
		if c := a.waiting[r.ID]; c != nil {
			c <- r
			delete(a.waiting, r.ID)
		}
		a.mu.Unlock()
	}
}

// hello waits for the agent's first word.
func (a *agent) hello(ctx context.Context) (proto.Response, error) {
	a.mu.Lock()
	c := a.waiting[0]
	a.mu.Unlock()
	if c == nil {
		return proto.Response{}, a.failure()
	}
	return a.await(ctx, 0, c)
}

// call sends a request and waits for its answer.
func (a *agent) call(ctx context.Context, req *proto.Request) (proto.Response, error) {
	c := make(chan proto.Response, 1)
	a.mu.Lock()
	if a.err != nil {
		a.mu.Unlock()
		return proto.Response{}, a.failure()
	}
	a.last++
	req.ID = a.last
	a.waiting[req.ID] = c
	line, err := json.Marshal(req)
	if err == nil {
		_, err = a.conn.Write(append(line, '\n'))
	}
	a.mu.Unlock()
	if err != nil {
		return proto.Response{}, fmt.Errorf("asking the guest's agent: %w", err)
	}
	return a.await(ctx, req.ID, c)
}

func (a *agent) await(ctx context.Context, id uint64, c chan proto.Response) (proto.Response, error) {
	select {
	case r, ok := <-c:
		if !ok {
			return r, a.failure()
		}
		if r.Err != "" {
			return r, errors.New("guest: " + r.Err)
		}
		return r, nil
	case <-ctx.Done():
		a.mu.Lock()
		delete(a.waiting, id)
		a.mu.Unlock()
		return proto.Response{}, fmt.Errorf("no answer of the guest: %w", ctx.Err())
	}
}

func (a *agent) failure() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Cmd is a command to run in the guest.
type Cmd struct {
	// Argv is the command, found in the usual directories of the host's root, and its arguments.
	Argv []string
	// Env is added to a small fixed environment.
	Env []string
	// Stdin is the command's input.
	Stdin []byte
}

// Result is what a command in the guest did. At most 1 MiB of each output is kept.
type Result struct {
	Argv           []string
	Stdout, Stderr []byte
	// Code is the exit code, -1 if a signal ended the command.
	Code int
	// Signal names the signal that ended the command.
	Signal string
	// TimedOut: the command was killed because the context's deadline had come.
	TimedOut bool
}

// OK says whether the command ended with exit code 0.
func (r *Result) OK() bool { return r.Code == 0 && !r.TimedOut }

// String is for messages of failed tests.
func (r *Result) String() string {
	how := fmt.Sprintf("exit code %d", r.Code)
	if r.Signal != "" {
		how = "signal " + r.Signal
	}
	if r.TimedOut {
		how += ", timed out"
	}
	return fmt.Sprintf("%s: %s\n%s%s", strings.Join(r.Argv, " "), how, r.Stdout, r.Stderr)
}

// Process is a command that runs in the guest.
type Process struct {
	v    *VM
	id   uint64
	argv []string
}

// Run runs a command in the guest until it ends or ctx does. An exit code other than 0 is not an error.
func (v *VM) Run(ctx context.Context, argv ...string) (*Result, error) {
	return v.RunCmd(ctx, &Cmd{Argv: argv})
}

// RunCmd is Run with an input and an environment.
func (v *VM) RunCmd(ctx context.Context, cmd *Cmd) (*Result, error) {
	p, err := v.SpawnCmd(ctx, cmd)
	if err != nil {
		return nil, err
	}
	return p.Wait(ctx)
}

// Spawn starts a command in the guest. It is killed at ctx's deadline, if there is one; the caller calls Wait.
func (v *VM) Spawn(ctx context.Context, argv ...string) (*Process, error) {
	return v.SpawnCmd(ctx, &Cmd{Argv: argv})
}

// SpawnCmd is Spawn with an input and an environment.
func (v *VM) SpawnCmd(ctx context.Context, cmd *Cmd) (*Process, error) {
	r, err := v.agent.call(ctx, &proto.Request{
		Op: proto.OpStart, Argv: cmd.Argv, Env: cmd.Env, Stdin: cmd.Stdin, TimeoutMS: remaining(ctx).Milliseconds(),
	})
	if err != nil {
		return nil, err
	}
	return &Process{v: v, id: r.Proc, argv: cmd.Argv}, nil
}

// Wait waits for the command's end, and kills it when ctx ends first.
func (p *Process) Wait(ctx context.Context) (*Result, error) {
	// The agent kills the command at the deadline and then answers: its answer says more than an error of ctx.
	grace, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		_ = p.Kill(syscall.SIGKILL)
		time.AfterFunc(10*time.Second, cancel)
	})
	defer stop()
	r, err := p.v.agent.call(grace, &proto.Request{Op: proto.OpWait, Proc: p.id})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(p.argv, " "), err)
	}
	return &Result{
		Argv: p.argv, Stdout: r.Stdout, Stderr: r.Stderr, Code: r.Code, Signal: r.Signal,
		TimedOut: r.Late || (r.Signal != "" && ctx.Err() != nil),
	}, nil
}

// Output is what the command has written so far, standard output and then standard error.
func (p *Process) Output(ctx context.Context) (string, error) {
	r, err := p.v.agent.call(ctx, &proto.Request{Op: proto.OpOutput, Proc: p.id})
	return string(r.Stdout) + string(r.Stderr), err
}

// Kill sends a signal to the command and its children.
func (p *Process) Kill(sig syscall.Signal) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err := p.v.agent.call(ctx, &proto.Request{Op: proto.OpKill, Proc: p.id, Value: int(sig)})
	return err
}

// remaining is the time until ctx's deadline, 0 without one.
func remaining(ctx context.Context) time.Duration {
	if d, ok := ctx.Deadline(); ok {
		return max(time.Until(d), time.Millisecond)
	}
	return 0
}
