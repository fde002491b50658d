//go:build interop && linux

package vm_test

import (
	"context"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/interop/vm"
)

// TestGuest uses all that the package offers, with a guest of its own.
func TestGuest(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	v, err := vm.Start(ctx, vm.Config{MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	}()
	run := func(argv ...string) string {
		t.Helper()
		r, err := v.Run(ctx, argv...)
		if err != nil || !r.OK() {
			t.Fatal(r, err)
		}
		return string(r.Stdout)
	}

	info := run("ibv_devinfo", "-v")
	at := 0
	for _, want := range []string{"PORT_ACTIVE", "active_mtu:\t\t1024", "::ffff:" + v.IPv4().String(), v.IPv6().String()} {
		i := strings.Index(info[at:], want)
		if i < 0 {
			t.Fatalf("no %q, or not in this order, in\n%s", want, info)
		}
		at += i
	}
	if err := v.SetMTU(ctx, 9000); err != nil {
		t.Fatal(err)
	}
	if info := run("ibv_devinfo", "-v"); !strings.Contains(info, "active_mtu:\t\t4096") {
		t.Errorf("the device did not follow the MTU:\n%s", info)
	}

	r, err := v.RunCmd(ctx, &vm.Cmd{Argv: []string{"sh", "-c", "cat; echo $X >&2; exit 3"}, Stdin: []byte("in"), Env: []string{"X=y"}})
	if err != nil || r.Code != 3 || string(r.Stdout) != "in" || string(r.Stderr) != "y\n" {
		t.Errorf("input, output and exit code: %v, %v", r, err)
	}
	p, err := v.Spawn(ctx, "sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	short, cancelShort := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancelShort()
	if r, err := p.Wait(short); err != nil || !r.TimedOut {
		t.Errorf("a command at its deadline: %v, %v", r, err)
	}
	if err := v.WriteFile(ctx, "/tmp/x", []byte("content")); err != nil {
		t.Fatal(err)
	}
	if b, err := v.ReadFile(ctx, "/tmp/x"); string(b) != "content" || err != nil {
		t.Errorf("ReadFile = %q, %v", b, err)
	}
	if c, err := v.Counters(ctx); err != nil || !slices.Contains(slices.Collect(maps.Keys(c)), "rcvd_pkts") {
		t.Errorf("Counters = %v, %v", c, err)
	}
	if log, err := v.KernelLog(ctx); err != nil || !strings.Contains(log, "rxe0: added eth0") {
		t.Errorf("kernel log: %v\n%s", err, log)
	}

	host := exec.CommandContext(ctx, "ip", "-br", "addr", "show", "dev", v.Net().Interface())
	if err := v.InNetns(host); err != nil {
		t.Fatal(err)
	}
	if out, err := host.CombinedOutput(); err != nil || !strings.Contains(string(out), v.Net().HostIPv4().String()) {
		t.Errorf("host side: %v: %s", err, out)
	}
}
