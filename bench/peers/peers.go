// Package peers runs the programs that people use where there is no RDMA (iperf3, sockperf, UCX over TCP) over the loopback interface
// and reads their results, so that Verbena is compared with them on the same machine in the same minute.
package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/verbena-rdma/verbena/bench"
)

// Workloads returns every measurement of every peer.
func Workloads() []bench.Workload {
	list := []bench.Workload{
		{Name: "iperf3", Run: iperf3},
		{Name: "sockperf/poll", Run: func(ctx context.Context, o bench.Options) ([]bench.Measurement, error) {
			return sockperf(ctx, o, true)
		}},
		{Name: "sockperf/sleep", Run: func(ctx context.Context, o bench.Options) ([]bench.Measurement, error) {
			return sockperf(ctx, o, false)
		}},
	}
	for _, t := range ucxTests {
		list = append(list, bench.Workload{
			Name: t.name(),
			Run: func(ctx context.Context, o bench.Options) ([]bench.Measurement, error) {
				return ucx(ctx, o, t)
			},
		})
	}
	return list
}

// pair is a server and a client of one program, already ended.
type pair struct {
	output []byte        // what the client printed
	cpu    time.Duration // of both
}

// runPair starts a server, waits until it has its port, and runs a client to its end. A server that does not end by itself is
// killed.
func runPair(ctx context.Context, network string, port int, server, client *exec.Cmd, endless bool) (pair, error) {
	var serverOutput, clientOutput, clientErrors bytes.Buffer
	server.Stdout, server.Stderr = &serverOutput, &serverOutput
	client.Stdout, client.Stderr = &clientOutput, &clientErrors
	if err := server.Start(); err != nil {
		return pair{}, err
	}
	err := waitPort(ctx, network, port)
	if err == nil {
		err = client.Run()
	}
	if err != nil || endless {
		_ = server.Process.Kill()
	}
	werr := server.Wait()
	if endless {
		werr = nil // the kill
	}
	if err := errors.Join(err, werr); err != nil {
		return pair{}, fmt.Errorf("%w\nserver: %s\nclient: %s%s", err, &serverOutput, &clientOutput, &clientErrors)
	}
	return pair{output: clientOutput.Bytes(), cpu: bench.CPUTime(server) + bench.CPUTime(client)}, nil
}

// lookPath finds a peer's program, or says that this machine does not have it.
func lookPath(program string) (string, error) {
	if runtime.GOOS != "linux" {
		return "", fmt.Errorf("%s: compared on Linux only: %w", program, bench.ErrUnavailable)
	}
	p, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("%s is not installed (bench/setup.sh): %w", program, bench.ErrUnavailable)
	}
	return p, nil
}

// freePort returns a port that was free a moment ago, for TCP and UDP.
func freePort() (int, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// waitPort waits until a socket has the port. It asks the kernel and not the server, since iperf3 would take a connection that only
// looks for the client.
func waitPort(ctx context.Context, network string, port int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, table := range []string{network, network + "6"} {
			text, err := os.ReadFile("/proc/net/" + table)
			if err == nil && hasPort(string(text), port) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no socket on port %d: %w", port, ctx.Err())
		case <-tick.C:
		}
	}
}

// hasPort reports whether a table of /proc/net has an unconnected socket with that local port.
func hasPort(table string, port int) bool {
	suffix := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		// sl local_address rem_address st ...
		if len(f) > 3 && strings.HasSuffix(f[1], suffix) && strings.HasSuffix(f[2], ":0000") {
			return true
		}
	}
	return false
}
