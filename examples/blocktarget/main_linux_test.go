package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// output is what a command has written, to be read while it runs.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

const server, own = "127.74.2.1", "127.74.2.2"

// port is not the one that targets have by themselves, at which one may be running.
var port = strconv.Itoa(20000 + os.Getpid()%20000)

// serving runs the server until the test ends, and gives what it says in the end.
func serving(t *testing.T, args ...string) (stop func() string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out, code := &output{}, make(chan int, 1)
	go func() {
		code <- run(ctx, append([]string{"serve", "--bind", server, "--port", port}, args...), out, out)
	}()
	for !strings.Contains(out.String(), "serving ") {
		select {
		case c := <-code:
			t.Fatalf("exit code %d: %s", c, out)
		case <-time.After(time.Millisecond):
		}
	}
	stop = sync.OnceValue(func() string {
		cancel()
		if c := <-code; c != 0 {
			t.Errorf("exit code %d: %s", c, out)
		}
		return out.String()
	})
	t.Cleanup(func() { stop() })
	return stop
}

func command(t *testing.T, args ...string) (out, errs string, code int) {
	t.Helper()
	var o, e bytes.Buffer
	if slices.Contains([]string{"copy", "put", "get", "info"}, args[0]) && !slices.Contains(args, "--port") {
		args = append(slices.Clone(args), "--port", port)
	}
	code = run(t.Context(), args, &o, &e)
	return o.String(), e.String(), code
}

func TestCopyCommands(t *testing.T) {
	dir := t.TempDir()
	data := make([]byte, 3<<20+123)
	rand.NewChaCha8([32]byte{1}).Read(data)
	in, back := filepath.Join(dir, "in"), filepath.Join(dir, "back")
	if err := os.WriteFile(in, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		serve  []string
		copied string
	}{
		{[]string{"--size", "8M"}, "the same, SHA-256"},
		{[]string{"--file", filepath.Join(dir, "disk"), "--size", "8M", "--t10", "1"}, "each block checked on both sides (T10-PI type 1)"},
	} {
		stop := serving(t, c.serve...)
		if out, errs, code := command(t, "copy", "--bind", own, server, in); code != 0 || !strings.Contains(out, c.copied) {
			t.Errorf("copy: %d %s%s", code, out, errs)
		}
		if out, errs, code := command(t, "put", "--bind", own, "--offset", "4M", "--length", "64K", "--depth", "3", server, in); code != 0 {
			t.Errorf("put: %d %s%s", code, out, errs)
		}
		if out, errs, code := command(t, "get", "--bind", own, "--offset", "4M", "--size", fmt.Sprint(len(data)), server, back); code != 0 {
			t.Errorf("get: %d %s%s", code, out, errs)
		}
		if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes came back, %v, not those that were sent", len(got), err)
		}
		if out, errs, code := command(t, "info", "--bind", own, server); code != 0 || !strings.Contains(out, "8388608 bytes: 16384 blocks of 512") {
			t.Errorf("info: %d %s%s", code, out, errs)
		}
		if _, errs, code := command(t, "put", "--bind", own, "--offset", "7M", server, in); code != 1 || !strings.Contains(errs, "--size makes a larger one") {
			t.Errorf("beyond the end: %d %s", code, errs)
		}
		if out := stop(); !strings.Contains(out, "5 clients; ") || !strings.Contains(out, " 0 refused") {
			t.Error(out)
		}
	}
}

// What goes wrong says what to do.
func TestMistakes(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		say  string
	}{
		{"serve", 2, "--size 64M serves memory"},
		{"serve --size 1X", 2, "want a number of bytes"},
		{"serve --size 64M --t10 9", 2, "want 1, 2 or 3"},
		{"serve --size 64M --bind nowhere", 2, "want an IP address"},
		{"serve --size 64M --port 0", 2, "want 1 to 65535"},
		{"serve --size 64M --block-size 100", 1, "want 512, 1024, 2048 or 4096"},
		{"serve --size 64M --bind 203.0.113.77", 1, "does not have the address"},
		{"serve --file /nonexistent/disk", 1, "no such file"},
		{"serve --size 64M --depth 5000", 1, "Depth 5000, want 1 to 1024"},
		{"serve --size 64M --memory 1K", 2, "want at least the longest request, --max-length 1M"},
		{"serve something", 2, "too many arguments"},
		{"copy 127.0.0.1", 2, "want the target's address and a file"},
		{"copy host /dev/null", 1, "not a regular file"},
		{"copy host " + os.Args[0], 2, "want an IP address"},
		{"copy --bind " + own + " --port 4 " + own + " " + os.Args[0], 1, "Is the target running"},
		{"info --bind " + own + " --timeout 100ms 127.74.2.99", 1, "no answer within 100ms"},
		{"info --depth 1 127.0.0.1", 2, "unknown flag"},
		{"frobnicate", 2, "there is no command frobnicate"},
	} {
		if _, errs, code := command(t, strings.Fields(c.args)...); code != c.code || !strings.Contains(errs, c.say) {
			t.Errorf("%s: exit code %d, %q; want %d and %q", c.args, code, errs, c.code, c.say)
		}
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]size{"0": 0, "1": 1, "4096": 4096, "64k": 64 << 10, "1M": 1 << 20, "2G": 2 << 30, "1T": 1 << 40} {
		var s size
		if err := s.Set(text); err != nil || s != want {
			t.Errorf("%s: %d, %v", text, s, err)
		}
		if again := s.String(); s.Set(again) != nil || s != want {
			t.Errorf("%s is not %d", again, want)
		}
	}
	for _, text := range []string{"", "M", "-1", "1.5G", "12345678901234567890", "9000000T"} {
		if s := size(7); s.Set(text) == nil {
			t.Errorf("%q is %d", text, s)
		}
	}
}
