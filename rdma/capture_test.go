package rdma

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"
)

// captured reads the head of a capture and returns the name of the device.
func captured(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewNgReader(bytes.NewReader(b), pcapgo.NgReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	i, err := r.Interface(0)
	if err != nil {
		t.Fatal(err)
	}
	return i.Name
}

// The environment and the option name the file; the option wins, and nobody
// writes to a file that another device writes to.
func TestCapture(t *testing.T) {
	lo := loopback(t)
	dir := t.TempDir()
	env, opt := filepath.Join(dir, "env-{device}-{pid}"), filepath.Join(dir, "opt")
	made := strings.NewReplacer("{device}", "soft_"+lo, "{pid}", strconv.Itoa(os.Getpid())).Replace(env)
	t.Setenv(CaptureEnv, env)
	a := WithAddrs(lo, netip.MustParseAddr("127.3.14.77"))

	d, err := Open(t.Context(), lo, a)
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "linux" {
		if _, err := Open(t.Context(), lo, a); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("a second device with the same file: %v", err)
		}
	}
	e, err := Open(t.Context(), lo, a, WithCapture(opt), WithCaptureLen(100))
	if err != nil {
		t.Fatal(err)
	}
	f, err := Open(t.Context(), lo, a, WithCapture(""))
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	g, err := Open(t.Context(), lo, a, WithCaptureTo(&buf))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []interface{ Close() error }{d, e, f, g} {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{made, opt} {
		if got := captured(t, name); got != "soft_"+lo {
			t.Errorf("%s: device %q", name, got)
		}
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 2 {
		t.Errorf("%v %v", list, err)
	}
	if buf.Len() == 0 {
		t.Error("nothing was written to the writer")
	}
	if _, err := Open(t.Context(), lo, a, WithCapture(filepath.Join(dir, "no", "file"))); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := Open(t.Context(), lo, a, WithCapture(opt), WithCaptureLen(-1)); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}
