//go:build unix && !solaris && !aix

package capture

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/internal/trace"
)

const killEnv = "VERBENA_TEST_CAPTURE_KILLED"

// told tells of each write but the first, that of the head.
type told struct {
	*os.File
	n     int
	wrote chan struct{}
}

func (f *told) Write(b []byte) (int, error) {
	n, err := f.File.Write(b)
	if f.n++; f.n > 1 {
		f.wrote <- struct{}{}
	}
	return n, err
}

// The file of a process that was killed has the packets up to then, ends with the
// last of them, and is free for the next.
func TestKilled(t *testing.T) {
	if name := os.Getenv(killEnv); name != "" {
		f, err := Create(name)
		if err != nil {
			t.Fatal(err)
		}
		w := &told{File: f, wrote: make(chan struct{}, 100)}
		c, err := New(Options{W: w})
		if err != nil {
			t.Fatal(err)
		}
		b := udp(v4a, v4b, 50000, 0, "hello")
		c.Packet(&trace.Packet{Sent: true, Src: v4a, Dst: v4b, SrcPort: 50000, IDKnown: true, Head: b, Size: len(b)})
		<-w.wrote
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	name := filepath.Join(t.TempDir(), "killed.pcapng")
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), killEnv+"="+name)
	var exit *exec.ExitError
	if out, err := cmd.CombinedOutput(); !errors.As(err, &exit) || exit.Exited() {
		t.Fatalf("the child was not killed: %v\n%s", err, out)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, rest := blocks(b); rest != 0 {
		t.Errorf("%d bytes of a block are at the end", rest)
	}
	if f := readFile(t, b); len(f.packets) != 1 {
		t.Errorf("%d packets", len(f.packets))
	}
	f, err := Create(name)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}
