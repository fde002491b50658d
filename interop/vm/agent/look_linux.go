package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/interop/vm/proto"
)

// waitListen waits until a TCP socket listens on port.
func waitListen(port int, timeout time.Duration) error {
	if timeout <= 0 {
		timeout = 30 * time.Second
	}
	return poll(timeout, fmt.Sprintf("listener on TCP port %d", port), func() bool {
		for _, f := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
			if b, err := os.ReadFile(f); err == nil && proto.Listens(string(b), port) {
				return true
			}
		}
		return false
	})
}

// readCounters reads a sysfs directory of files with one number each.
func readCounters(dir string) (map[string]uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	values := map[string]uint64{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		if v, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil {
			values[e.Name()] = v
		}
	}
	return values, nil
}

func kernelLog() ([]byte, error) {
	buf := make([]byte, 1<<20)
	n, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, buf)
	if err != nil {
		return nil, err
	}
	return buf[:n], nil
}
