//go:build interop && linux

package interop

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// captureDir: with it every pair of programs runs under tcpdump, and the captures of those that stalled stay there.
var captureDir = flag.String("capture", "", "directory for the captures of exchanges that stall or are slow")

// stallAfter is when an exchange that is still under way is looked at. Verbena's program gives up after 30 s.
const stallAfter = 12 * time.Second

// slow is how long an exchange takes that waited for timers; its capture is kept, too.
const slow = 4 * time.Second

// watch captures an exchange and, when it takes long, logs what the kernel counts meanwhile. done ends it; with keep the capture stays.
func watch(t *testing.T) (done func(keep bool)) {
	t.Helper()
	if *captureDir == "" {
		return func(bool) {}
	}
	file := filepath.Join(*captureDir, fmt.Sprintf("%s-%d.pcap", strings.ReplaceAll(t.Name(), "/", "-"), time.Now().Unix()))
	cmd := exec.Command("tcpdump", "-i", guest.Tap(), "-w", file, "-U", "--immediate-mode", "-s", "160", "-B", "16384", "udp port 4791")
	if err := guest.InNetns(cmd); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(out)
	if line, err := in.ReadString('\n'); err != nil || !strings.Contains(line, "listening") {
		t.Fatalf("tcpdump: %s%v", line, err)
	}
	go func() { _, _ = io.Copy(io.Discard, in) }()
	ctx, cancel := context.WithCancel(t.Context())
	begin := time.Now()
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		look(ctx, t)
	}()
	return func(keep bool) {
		cancel()
		<-looked
		if keep {
			time.Sleep(time.Second) // what comes late
		}
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait()
		if !keep && time.Since(begin) < slow {
			_ = os.Remove(file)
			return
		}
		t.Logf("capture: %s", file)
	}
}

// look logs the kernel's counters and queue pairs of an exchange that does not end, twice.
func look(ctx context.Context, t *testing.T) {
	for range 2 {
		select {
		case <-ctx.Done():
			return
		case <-time.After(stallAfter):
		}
		c, err := guest.Counters(ctx)
		t.Logf("still under way: %v %v", c, err)
		for _, argv := range [][]string{{"rdma", "-dd", "resource", "show", "qp"}, {"cat", "/proc/loadavg", "/proc/softirqs"}} {
			if r, err := guest.Run(ctx, argv...); err == nil {
				t.Log(r)
			}
		}
	}
}
