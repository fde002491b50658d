package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/interop/vm/proto"
)

// maxOutput bounds what is kept of each output stream; the rest is thrown away.
const maxOutput = 1 << 20

// process is one started command and its process group.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr output
	late           atomic.Bool
	done           chan struct{}
}

func startProcess(req *proto.Request, timeout time.Duration) (*process, error) {
	if len(req.Argv) == 0 {
		return nil, errors.New("empty command")
	}
	path, err := lookPath(req.Argv[0])
	if err != nil {
		return nil, err
	}
	p := &process{done: make(chan struct{})}
	p.cmd = &exec.Cmd{
		Path: path,
		Args: req.Argv,
		Dir:  "/tmp",
		Env: append([]string{
			"PATH=" + searchPath, "HOME=/tmp", "LANG=C.UTF-8", "LC_ALL=C.UTF-8", "PYTHONDONTWRITEBYTECODE=1", "PYTHONUNBUFFERED=1",
		}, req.Env...),
		Stdin:       bytes.NewReader(req.Stdin),
		Stdout:      &p.stdout,
		Stderr:      &p.stderr,
		SysProcAttr: &syscall.SysProcAttr{Chroot: guestRoot, Setpgid: true},
		// A grandchild that keeps the pipes open does not hold the answer back for ever.
		WaitDelay: 2 * time.Second,
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if timeout > 0 {
		time.AfterFunc(timeout, func() {
			select {
			case <-p.done:
			default:
				p.late.Store(true)
				_ = p.kill(syscall.SIGKILL)
			}
		})
	}
	go func() {
		_ = p.cmd.Wait() // the exit status is read from ProcessState
		close(p.done)
	}()
	return p, nil
}

func (p *process) kill(sig syscall.Signal) error {
	select {
	case <-p.done:
		return nil
	default:
	}
	err := syscall.Kill(-p.cmd.Process.Pid, sig)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

func (p *process) wait(resp *proto.Response) {
	<-p.done
	resp.Stdout, resp.Stderr, resp.Late = p.stdout.bytes(), p.stderr.bytes(), p.late.Load()
	resp.Code = p.cmd.ProcessState.ExitCode()
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		resp.Signal = ws.Signal().String()
	}
}

// output keeps the first maxOutput bytes written to it.
type output struct {
	mu  sync.Mutex
	buf []byte
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf = append(o.buf, b[:min(len(b), maxOutput-len(o.buf))]...)
	return len(b), nil
}

func (o *output) bytes() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.buf)
}

const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// lookPath finds a command in the host's root, since the search of os/exec would look in the initrd.
func lookPath(name string) (string, error) {
	if name[0] == '/' {
		return name, nil
	}
	for _, dir := range []string{"/usr/sbin/", "/usr/bin/", "/sbin/", "/bin/"} {
		if fi, err := os.Stat(guestRoot + dir + name); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return dir + name, nil
		}
	}
	return "", fmt.Errorf("command %s not found in the host's root", name)
}
