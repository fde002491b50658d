// Command agent is the init process of the guest: it loads the modules, configures eth0, mounts the host's root read-only,
// makes the device rxe0 and then carries out what the test process asks for over a virtio-serial port (package proto).
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/interop/vm/proto"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "agent: this is the init process of a test guest, not a command")
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, "agent:", run())
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// run returns only with the reason why the guest cannot go on.
func run() error {
	port, err := openPort()
	if err != nil {
		return err
	}
	s := &server{out: json.NewEncoder(port), procs: map[uint64]*process{}}
	release, err := setUp()
	if err != nil {
		s.reply(proto.Response{Err: err.Error()})
		return err
	}
	s.reply(proto.Response{Data: []byte(release)})

	in := bufio.NewReaderSize(port, 1<<16)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("reading the agent port: %w", err)
		}
		var req proto.Request
		if err := json.Unmarshal(line, &req); err != nil {
			return fmt.Errorf("bad request %q: %w", line, err)
		}
		go func() { s.reply(s.serve(&req)) }()
	}
}

// server holds the running processes and serializes the answers.
type server struct {
	mu    sync.Mutex // guards out, procs and last
	out   *json.Encoder
	procs map[uint64]*process
	last  uint64
}

func (s *server) reply(r proto.Response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.out.Encode(r); err != nil {
		fmt.Fprintln(os.Stderr, "agent: answering:", err)
	}
}

func (s *server) serve(req *proto.Request) proto.Response {
	resp := proto.Response{ID: req.ID}
	err := s.carryOut(req, &resp)
	if err != nil {
		resp.Err = err.Error()
	}
	return resp
}

func (s *server) carryOut(req *proto.Request, resp *proto.Response) (err error) {
	timeout := time.Duration(req.TimeoutMS) * time.Millisecond
	switch req.Op {
	case proto.OpStart:
		p, err := startProcess(req, timeout)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.last++
		resp.Proc = s.last
		s.procs[s.last] = p
		s.mu.Unlock()
		return nil
	case proto.OpWait, proto.OpOutput, proto.OpKill:
		s.mu.Lock()
		p := s.procs[req.Proc]
		s.mu.Unlock()
		if p == nil {
			return fmt.Errorf("no process %d", req.Proc)
		}
		switch req.Op {
		case proto.OpKill:
			return p.kill(unix.Signal(req.Value))
		case proto.OpOutput:
			resp.Stdout, resp.Stderr = p.stdout.bytes(), p.stderr.bytes()
			return nil
		}
		p.wait(resp)
		s.mu.Lock()
		delete(s.procs, req.Proc)
		s.mu.Unlock()
		return nil
	case proto.OpRead:
		resp.Data, err = os.ReadFile(guestRoot + req.Path)
		return err
	case proto.OpWrite:
		return os.WriteFile(guestRoot+req.Path, req.Data, 0o755)
	case proto.OpListen:
		return waitListen(req.Value, timeout)
	case proto.OpMTU:
		return setMTU(req.Value)
	case proto.OpCounters:
		resp.Values, err = readCounters(guestRoot + req.Path)
		return err
	case proto.OpLog:
		resp.Data, err = kernelLog()
		return err
	}
	return fmt.Errorf("unknown operation %q", req.Op)
}
