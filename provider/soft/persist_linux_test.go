package soft

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/internal/mem"
)

func TestPersist(t *testing.T) {
	tab := mem.NewTable(1, 1)
	defer tab.Close()
	tab.SetPersister(os.Getpagesize(), persister())
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := 3 * os.Getpagesize()
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	at := os.Getpagesize() + 100
	copy(b[at:], "durable")
	for _, p := range [][]byte{b[at : at+7], b, b[at:at]} {
		if err := tab.Persist(p); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, 7)
	if _, err := f.ReadAt(got, int64(at)); err != nil || string(got) != "durable" {
		t.Errorf("%q, %v", got, err)
	}
	if err := tab.Persist(make([]byte, 10)); err != nil { // ordinary memory is no error
		t.Error(err)
	}
	if err := unix.Munmap(b); err != nil {
		t.Fatal(err)
	}
	if err := tab.Persist(b[at : at+7]); !errors.Is(err, mem.ErrFault) {
		t.Errorf("unmapped: %v", err)
	}
}
