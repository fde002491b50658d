package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/rdma"
)

// What a program of this host sends and receives is captured by the environment
// variable, and dump prints it.
func TestDump(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the loopback interface has one address only")
	}
	t.Parallel()
	dir := t.TempDir()
	cmd := command(t, "demo", "--size", "1", "--pings", "10", "--addr", loopAddr().String(), "--peer-addr", loopAddr().String())
	cmd.Env = append(cmd.Env, "VERBENA_PCAP="+filepath.Join(dir, "{device}-{pid}.pcapng"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "soft_lo-*.pcapng"))
	if err != nil || len(files) != 2 {
		t.Fatalf("captures of both processes: %v %v", files, err)
	}
	both := verbena(t, "dump", "-c", "1", files[0], files[1]).want(t, cli.ExitOK)
	if n := strings.Count(both.stdout, "\n"); n != 3 || !strings.Contains(both.stdout, "2: "+files[1]+"\n") {
		t.Errorf("the first packet of both files:\n%s", both.stdout)
	}
	for _, f := range files {
		r := verbena(t, "dump", f).want(t, cli.ExitOK)
		for _, s := range []string{" > 127.", " < 127.", " RC_RDMA_WRITE_", " RC_ACKNOWLEDGE ", " UD_SEND_ONLY "} {
			if !strings.Contains(r.stdout, s) {
				t.Errorf("%q is not in %d lines", s, strings.Count(r.stdout, "\n"))
			}
		}
		if strings.Contains(r.stdout, "ICRC") {
			t.Error("wrong ICRCs")
		}
		if r := verbena(t, "dump", "-c", "3", f).want(t, cli.ExitOK); strings.Count(r.stdout, "\n") != 3 {
			t.Errorf("-c 3 prints\n%s", r.stdout)
		}
	}
}

// A program that opens all devices says so if their captures have one name: the first would
// have the file, and the rest be missing.
func TestCaptureOfAll(t *testing.T) {
	t.Parallel()
	list, err := rdma.Devices(t.Context())
	if err != nil || len(list) < 2 {
		t.Skipf("%d devices, %v: one has nobody to take the file from", len(list), err)
	}
	cmd := command(t, "ping", "-s", "-p", "7199")
	cmd.Env = append(cmd.Env, "VERBENA_PCAP="+filepath.Join(t.TempDir(), "{pid}.pcapng"))
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "{device}") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestDumpFailures(t *testing.T) {
	t.Parallel()
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		say  string
	}{
		{[]string{"dump"}, cli.ExitUsage, "needs a file"},
		{[]string{"dump", "-c", "-1", "a"}, cli.ExitUsage, "-c/--count -1"},
		{[]string{"dump", "--qp", "x", "a"}, cli.ExitUsage, "--qp \"x\""},
		{[]string{"dump", empty + "x"}, cli.ExitFailed, "no such file"},
		{[]string{"dump", empty}, cli.ExitFailed, "neither pcapng nor pcap"},
	} {
		if r := verbena(t, c.args...).want(t, c.code); !strings.Contains(r.stderr, c.say) {
			t.Errorf("%v: %s", c.args, r.stderr)
		}
	}
}
