package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// answerTime is how long the second process may take for an answer.
	answerTime = 30 * time.Second
	// endTime is how long it may take to end.
	endTime = 5 * time.Second
)

// child is the second process as the first one sees it.
type child struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan answer
	ended   chan struct{}
	err     error // how it ended, once ended is closed
	stderr  tail
}

// start starts the second process: args after our own program. die is called
// when it ends.
func start(ctx context.Context, args []string, die func(error)) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the program for the second process: %w", err)
	}
	c := &child{cmd: exec.CommandContext(ctx, exe, args...), answers: make(chan answer, 1), ended: make(chan struct{})}
	r, w := io.Pipe()
	c.cmd.Stdout, c.cmd.Stderr, c.cmd.WaitDelay = w, &c.stderr, endTime
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the second process: %w", err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		d := json.NewDecoder(r)
		for {
			var a answer
			if err := d.Decode(&a); err != nil {
				r.CloseWithError(err)
				return
			}
			c.answers <- a
		}
	})
	go func() {
		err := c.cmd.Wait()
		w.Close()
		if err == nil {
			err = errors.New("exit status 0")
		}
		c.err = fmt.Errorf("the second process ended: %w%s", err, c.stderr.said())
		die(c.err)
		close(c.ended)
	}()
	return c, nil
}

// ask sends a request and waits for its answer.
func (c *child) ask(ctx context.Context, r *request) (answer, error) {
	line, err := lineOf(r)
	if err != nil {
		return answer{}, err
	}
	if _, err := c.in.Write(line); err != nil {
		// A broken pipe: why it ended is worth more, and known soon.
		select {
		case <-c.ended:
			return answer{}, c.err
		case <-time.After(endTime):
			return answer{}, ctxErr(ctx, fmt.Errorf("talk to the second process: %w", err))
		}
	}
	limit := time.NewTimer(answerTime)
	defer limit.Stop()
	select {
	case a := <-c.answers:
		if a.Err != "" {
			return a, &remoteError{a.Err, syscall.Errno(a.Errno)}
		}
		return a, nil
	case <-ctx.Done():
		return answer{}, context.Cause(ctx)
	case <-limit.C:
		return answer{}, fmt.Errorf("the second process does not answer %s within %v", r.Op, answerTime)
	}
}

// stop ends the process: it ends by itself when its input does, or is killed.
func (c *child) stop() {
	c.in.Close()
	select {
	case <-c.ended:
	case <-time.After(endTime):
		c.cmd.Process.Kill()
		<-c.ended
	}
}

// tail keeps the end of what is written.
type tail struct {
	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if over := len(t.b) - 4096; over > 0 {
		t.b = t.b[over:]
	}
	return len(p), nil
}

func (t *tail) said() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := bytes.TrimSpace(t.b); len(s) > 0 {
		return "\n  it said: " + strings.ReplaceAll(string(s), "\n", "\n  ")
	}
	return ""
}
