package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/cmd/verbena/internal/demo"
)

// needLoopback skips where the loopback interface has only 127.0.0.1.
func needLoopback(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs loopback addresses other than 127.0.0.1")
	}
}

// demoArgs are the arguments of a short demo on an address of its own.
func demoArgs(more ...string) []string {
	args := []string{"demo", "--addr", loopAddr().String(), "--pings", "200", "--size", "1.5"}
	return append(args, more...)
}

func demoJSON(t *testing.T, out string) *demo.Result {
	t.Helper()
	var r demo.Result
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	return &r
}

func TestDemoFiles(t *testing.T) {
	t.Parallel()
	needLoopback(t)
	dir := t.TempDir()
	const seed = 4
	rnd := rand.New(rand.NewPCG(seed, 0))
	for _, size := range []int{0, 1, 4096, 100_001, 5<<20 + 3} {
		path := filepath.Join(dir, fmt.Sprint(size))
		content := make([]byte, size)
		for i := range content {
			content[i] = byte(rnd.Uint32())
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		named := []string{"--json", "--file", path}
		if size%2 == 1 {
			named = []string{"--json", path}
		}
		r := demoJSON(t, verbena(t, demoArgs(named...)...).want(t, cli.ExitOK).stdout)
		if !strings.HasPrefix(r.Device, "soft_") || r.PeerDevice != r.Device {
			t.Errorf("on %q and %q", r.Device, r.PeerDevice)
		}
		sum := sha256.Sum256(content)
		if r.SHA256 != hex.EncodeToString(sum[:]) || r.Size != int64(size) || r.Write.Bytes != r.Size || r.Read.Bytes != r.Size || r.Made {
			t.Errorf("%d bytes: %+v", size, r)
		}
		var steps []string
		for _, c := range r.Checks {
			steps = append(steps, c.Step)
			if !c.OK || c.Want != c.Got || c.Want == "" {
				t.Errorf("%d bytes: %+v", size, c)
			}
		}
		want := []string{"WRITE", "READ", "SEND", "FETCH_ADD", "CMP_SWAP", "ATOMIC RESULT", "DATAGRAM", "DATAGRAM SENDER"}
		if !slices.Equal(steps, want) {
			t.Errorf("compared: %v", steps)
		}
		if r.Latency == nil || r.Latency.Count != 200 || r.Latency.Min <= 0 || r.Latency.Max < r.Latency.P99 || r.Latency.P99 < r.Latency.P50 {
			t.Errorf("latency %+v", r.Latency)
		}
		checkWire(t, r)
	}
}

// checkWire holds the timeline to what must have been on the wire.
func checkWire(t *testing.T, r *demo.Result) {
	t.Helper()
	var sent, received uint64
	counts := make(map[string]uint64)
	for _, s := range r.Wire {
		for _, l := range s.Packets {
			if l.Sent {
				sent += l.Count
			} else {
				received += l.Count
			}
			counts[s.Step+" "+l.Opcode] += l.Count
			if l.Time < 0 || l.Bytes < 16 || l.Count == 0 {
				t.Errorf("%+v", l)
			}
		}
	}
	// An acknowledgement may leave between the two counts.
	if r.Counters.Sent < sent || r.Counters.Sent > sent+2 || r.Counters.Received < received || r.Counters.Received > received+2 {
		t.Errorf("timeline: %d sent, %d received; counters: %+v", sent, received, r.Counters)
	}
	writes := counts["WRITE RC_RDMA_WRITE_ONLY"] + counts["WRITE RC_RDMA_WRITE_FIRST"] + counts["WRITE RC_RDMA_WRITE_MIDDLE"] + counts["WRITE RC_RDMA_WRITE_LAST"]
	if want := uint64(max(r.Size+int64(r.PathMTU)-1, 1) / int64(r.PathMTU)); writes < max(want, 1) {
		t.Errorf("%d WRITE packets for %d bytes", writes, r.Size)
	}
	for _, k := range []string{
		"connect UD_SEND_ONLY", "WRITE RC_ACKNOWLEDGE", "READ RC_RDMA_READ_REQUEST", "SEND RC_SEND_ONLY", "FETCH_ADD RC_FETCH_ADD",
		"FETCH_ADD RC_ATOMIC_ACKNOWLEDGE", "CMP_SWAP RC_COMPARE_SWAP", "DATAGRAM UD_SEND_ONLY", "PINGPONG RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE",
	} {
		if counts[k] == 0 {
			t.Errorf("no packet of %s in %v", k, counts)
		}
	}
}

// A file longer than the window goes in rounds.
func TestDemoText(t *testing.T) {
	t.Parallel()
	needLoopback(t)
	r := verbena(t, demoArgs("--size", "65", "--pings", "0")...).want(t, cli.ExitOK)
	for _, s := range []string{
		"65 MiB, random, made for this", "same checksum there", "same checksum back here", "it was 41", "it was 42", "RC_RDMA_WRITE_FIRST",
		"RC_RDMA_READ_RESPONSE_MIDDLE", "RC_ATOMIC_ACKNOWLEDGE", "UD_SEND_ONLY", "from QP 0x000001, REQ", "from QP 0x000001, REP", "from QP 0x000001, RTU", "Everything arrived as it was sent.",
	} {
		if !strings.Contains(r.stdout, s) {
			t.Errorf("the output lacks %q:\n%s", s, r.stdout)
		}
	}
	if i := strings.Index(r.stdout, " \n"); i >= 0 {
		t.Errorf("blanks at the end of a line:\n%s", r.stdout[:i])
	}
	if r.stderr != "" || strings.Contains(r.stdout, "\r") || strings.Contains(r.stdout, "\x1b") {
		t.Errorf("control characters without a terminal, or output on stderr: %q", r.stderr)
	}
}

// What differs is told, and the exit code too.
func TestDemoDifference(t *testing.T) {
	t.Parallel()
	needLoopback(t)
	for damage, step := range map[string]string{
		"write": "WRITE", "read": "READ", "send": "SEND", "atomic": "ATOMIC RESULT", "datagram": "DATAGRAM",
	} {
		res := verbena(t, demoArgs("--json", "--damage", damage)...).want(t, cli.ExitFailed)
		if !strings.Contains(res.stderr, step+": data differs") {
			t.Errorf("%s: %s", damage, res.stderr)
		}
		for _, c := range demoJSON(t, res.stdout).Checks {
			// What was damaged on arrival comes back damaged.
			if bad := c.Step == step || damage == "write" && c.Step == "READ"; c.OK == bad {
				t.Errorf("%s: %+v", damage, c)
			}
		}
	}
}

func TestDemoBadFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	for path, say := range map[string]string{
		filepath.Join(dir, "missing"): "no such file",
		dir:                           "not a regular file",
		secret:                        "permission denied",
	} {
		if path == secret {
			if f, err := os.Open(path); err == nil {
				f.Close()
				continue // root reads everything
			}
		}
		r := verbena(t, demoArgs("--file", path)...).want(t, cli.ExitFailed)
		if !strings.Contains(r.stderr, "cannot send the file") || !strings.Contains(r.stderr, say) {
			t.Errorf("%s: %s", path, r.stderr)
		}
	}
}

func TestDemoAddressInUse(t *testing.T) {
	t.Parallel()
	needLoopback(t)
	addr := loopAddr()
	l, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 4791)))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, args := range [][]string{{"--addr", addr.String()}, {"--addr", loopAddr().String(), "--peer-addr", addr.String()}} {
		r := verbena(t, append([]string{"demo", "--size", "0"}, args...)...).want(t, cli.ExitFailed)
		if !strings.Contains(r.stderr, "verbena demo --addr 127.1.1.1") || !strings.Contains(r.stderr, "4791") {
			t.Errorf("%v: %s", args, r.stderr)
		}
	}
}

func TestDemoPeerDies(t *testing.T) {
	t.Parallel()
	needLoopback(t)
	r := verbena(t, demoArgs("--damage", "die")...).want(t, cli.ExitFailed)
	if !strings.Contains(r.stderr, "the second process ended: exit status 3") {
		t.Errorf("%s", r.stderr)
	}
}

// Ctrl-C ends both processes and leaves no file behind.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	needLoopback(t)
	dir := t.TempDir()
	cmd := command(t, demoArgs("--damage", "hang")...)
	cmd.Env = append(cmd.Env, "TMPDIR="+dir)
	var errs strings.Builder
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// It has made its file: then it listens to signals, and never ends by itself.
	// The file has no name any more, so that not even SIGKILL leaves it behind.
	waitFor(t, func() bool {
		fds := fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid)
		list, _ := os.ReadDir(fds)
		return slices.ContainsFunc(list, func(e os.DirEntry) bool {
			to, _ := os.Readlink(filepath.Join(fds, e.Name()))
			return strings.HasPrefix(to, dir) && strings.HasSuffix(to, "(deleted)")
		})
	})
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != cli.ExitFailed || !strings.Contains(errs.String(), "interrupted") {
		t.Errorf("exit code %d: %s", code, &errs)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("left: %v %v", list, err)
	}
}

// The second process ends with the first one, even when that is killed.
func TestDemoOrphan(t *testing.T) {
	t.Parallel()
	needLoopback(t)
	cmd := command(t, demoPeerName)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != cli.ExitFailed {
		t.Errorf("exit code %d", code)
	}
}

// waitFor waits until ok.
func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not happen")
		}
	}
}
