package main

import (
	"bytes"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
)

// server is a process that waits for its client.
type server struct {
	cmd  *exec.Cmd
	out  bytes.Buffer
	port string
	end  func() string // waits for its end, ending it if needed; the output
}

// startServer starts a pingpong server on a TCP port that is free.
func startServer(t *testing.T, kind string, options ...string) *server {
	t.Helper()
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	s := &server{cmd: command(t, append([]string{"pingpong", kind, "-p", port}, options...)...), port: port}
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.end = sync.OnceValue(func() string {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		return s.out.String()
	})
	t.Cleanup(func() { s.end() })
	return s
}

// dial begins the exchange with the server as a client process, which is ended
// with the test, and returns when the server has answered.
func (s *server) dial(t *testing.T, kind string, options ...string) {
	t.Helper()
	for {
		cmd := command(t, append([]string{"pingpong", kind, "-p", s.port}, append(options, "127.0.0.1")...)...)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		text := make([]byte, 1)
		var all []byte
		for !bytes.Contains(all, []byte("remote address")) {
			if _, err := out.Read(text); err != nil {
				break
			}
			all = append(all, text...)
		}
		if bytes.Contains(all, []byte("remote address")) {
			t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
			return
		}
		cmd.Wait()
		if t.Context().Err() != nil {
			t.FailNow()
		}
	}
}

// play runs server and client at one address to their end and returns both outputs.
func play(t *testing.T, kind string, options ...string) (srv, client string) {
	t.Helper()
	a := loopAddr().String()
	s := startServer(t, kind, append([]string{"--addr", a}, options...)...)
	args := append([]string{"pingpong", kind, "-p", s.port, "--addr", a}, append(options, "127.0.0.1")...)
	r := verbena(t, args...)
	for strings.Contains(r.stderr, "Start the server first") && t.Context().Err() == nil {
		r = verbena(t, args...) // it does not listen yet
	}
	if r.code != cli.ExitOK {
		t.Fatalf("client: exit code %d\n%s%s\nserver:\n%s", r.code, r.stdout, r.stderr, s.end())
	}
	s.cmd.Wait()
	if code := s.cmd.ProcessState.ExitCode(); code != cli.ExitOK {
		t.Fatalf("server: exit code %d\n%s", code, s.out.String())
	}
	return s.out.String(), r.stdout
}

var (
	localLine  = regexp.MustCompile(`^  local address:  LID 0x0000, QPN 0x([0-9a-f]{6}), PSN 0x([0-9a-f]{6})[,:] GID (::ffff:127[0-9.]+)$`)
	remoteLine = regexp.MustCompile(`^  remote address: LID 0x0000, QPN 0x([0-9a-f]{6}), PSN 0x([0-9a-f]{6}), GID (::ffff:127[0-9.]+)$`)
	bytesLine  = regexp.MustCompile(`^([0-9]+) bytes in [0-9]+\.[0-9]{2} seconds = [0-9]+\.[0-9]{2} Mbit/sec$`)
	itersLine  = regexp.MustCompile(`^([0-9]+) iters in [0-9]+\.[0-9]{2} seconds = [0-9]+\.[0-9]{2} usec/iter$`)
)

// checkOutput holds one side's output to the form that rdma-core's programs
// have, and returns what it says about the sides.
func checkOutput(t *testing.T, out string, qps, size, iters int) (local, remote []string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if len(lines) != 2*qps+2 {
		t.Fatalf("%d lines:\n%s", len(lines), out)
	}
	for i, l := range lines[:2*qps] {
		re, to := localLine, &local
		if i >= qps {
			re, to = remoteLine, &remote
		}
		m := re.FindStringSubmatch(l)
		if m == nil {
			t.Fatalf("line %q", l)
		}
		*to = append(*to, strings.Join(m[1:], " "))
	}
	if m := bytesLine.FindStringSubmatch(lines[2*qps]); m == nil || m[1] != strconv.Itoa(2*size*iters) {
		t.Errorf("line %q, want %d bytes", lines[2*qps], 2*size*iters)
	}
	if m := itersLine.FindStringSubmatch(lines[2*qps+1]); m == nil || m[1] != strconv.Itoa(iters) {
		t.Errorf("line %q, want %d iters", lines[2*qps+1], iters)
	}
	return local, remote
}

// TestPingpong plays every kind between two processes, at every path MTU.
func TestPingpong(t *testing.T) {
	needLoopback(t)
	const iters, odd = 60, 10_001
	for _, kind := range []string{"rc", "uc", "ud", "srq"} {
		for _, mtu := range []int{256, 512, 1024, 2048, 4096} {
			size := odd
			options := []string{"-c", "-n", strconv.Itoa(iters)}
			if kind == "ud" {
				size = mtu - 1
			} else {
				options = append(options, "-m", strconv.Itoa(mtu))
			}
			if mtu%1024 != 0 { // sleeping and polling in turn
				options = append(options, "-e")
			}
			t.Run(fmt.Sprintf("%s/%d", kind, mtu), func(t *testing.T) {
				t.Parallel()
				srv, client := play(t, kind, append(options, "-s", strconv.Itoa(size))...)
				qps := 1
				if kind == "srq" {
					qps = 16
				}
				sl, sr := checkOutput(t, srv, qps, size, iters)
				cl, cr := checkOutput(t, client, qps, size, iters)
				if fmt.Sprint(sl) != fmt.Sprint(cr) || fmt.Sprint(cl) != fmt.Sprint(sr) {
					t.Errorf("server %v with %v, client %v with %v", sl, sr, cl, cr)
				}
			})
		}
	}
}

func TestPingpongOptions(t *testing.T) {
	needLoopback(t)
	for _, c := range []struct {
		kind, options string
		qps, size, n  int
	}{
		{"rc", "-s 1 -n 20 -c", 1, 1, 20},
		{"rc", "--size=1048576 --iters=3 --mtu=4096 --chk --new_send", 1, 1 << 20, 3},
		{"rc", "-r 1 -n 20 -l 3 -g 0 -i 1", 1, 4096, 20},
		{"uc", "-n 20 -s 3 -e", 1, 3, 20},
		{"ud", "-n 20 -s 4096 -c -r 7", 1, 4096, 20},
		{"srq", "-q 3 -n 40 -s 7 -r 3", 3, 7, 40},
		{"srq", "-q 255 -r 300 -n 600 -s 64", 255, 64, 600},
	} {
		t.Run(c.kind+"/"+c.options, func(t *testing.T) {
			t.Parallel()
			srv, client := play(t, c.kind, strings.Fields(c.options)...)
			checkOutput(t, srv, c.qps, c.size, c.n)
			checkOutput(t, client, c.qps, c.size, c.n)
		})
	}
}

// Sides that do not fit are told what does not.
func TestPingpongMismatch(t *testing.T) {
	needLoopback(t)
	t.Parallel()
	s := startServer(t, "rc", "--addr", loopAddr().String(), "-s", "100", "-n", "10")
	s.dial(t, "rc", "--addr", loopAddr().String(), "-s", "99", "-n", "10")
	s.cmd.Wait()
	if code := s.cmd.ProcessState.ExitCode(); code != cli.ExitFailed || !strings.Contains(s.out.String(), "received 99 bytes, want 100") {
		t.Errorf("exit code %d:\n%s", code, s.out.String())
	}
}
