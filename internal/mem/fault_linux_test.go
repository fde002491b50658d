package mem

import (
	"bytes"
	"errors"
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

func mapPages(t *testing.T, n int) []byte {
	t.Helper()
	b, err := syscall.Mmap(-1, 0, n*4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// touch runs every guarded function on b and wants ErrFault from each that
// should fail.
func touch(t *testing.T, b []byte, read, write bool) {
	t.Helper()
	defer func() {
		if debug.SetPanicOnFault(false) {
			t.Error("PanicOnFault is left set")
		}
	}()
	check := func(name string, err error, ok bool) {
		t.Helper()
		if ok && err != nil || !ok && !errors.Is(err, ErrFault) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, n := range []int{8, 64, 4096} {
		other := make([]byte, n)
		check("Copy from", Copy(other, b[:n]), read)
		check("Copy to", Copy(b[:n], other), write)
		_, err := CRC(0, b[:n])
		check("CRC", err, read)
	}
	if raceDetector && read != write {
		return
	}
	for off := range 2 {
		_, err := FetchAdd(b[off:off+8], 1)
		check("FetchAdd", err, write)
		_, err = CompareSwap(b[off:off+8], 1, 1)
		if read == write { // on memory that is only readable it depends on what is there
			check("CompareSwap", err, write)
		}
	}
}

// Memory that vanishes under its registration is an error, not the end of the
// process.
func TestVanishedMemory(t *testing.T) {
	tab, pd := newTable(t, 10), NewPD()
	b := mapPages(t, 2)
	r, err := tab.RegisterPointer(pd, uintptr(Address(b)), 8192, 0, allRights)
	if err != nil {
		t.Fatal(err)
	}
	out, ok := tab.Remote(pd, 1, r.RKey(), 0, 8192, ib.AccessRemoteWrite, nil)
	if !ok || len(out) != 1 || len(out[0]) != 8192 {
		t.Fatal("lookup")
	}
	p := out[0]
	if err := Copy(p[4090:], []byte("over the edge")); err != nil || !bytes.Equal(b[4090:4103], []byte("over the edge")) {
		t.Fatalf("%v %q", err, b[4090:4103])
	}
	touch(t, p, true, true)

	if err := syscall.Mprotect(b[:4096], syscall.PROT_READ); err != nil {
		t.Fatal(err)
	}
	touch(t, p, true, false)

	if err := syscall.Mprotect(b[:4096], syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	touch(t, p, false, false)
	// The second page is still there.
	if err := Copy(make([]byte, 8), p[4096:4104]); err != nil {
		t.Error(err)
	}
	if err := Copy(make([]byte, 16), p[4088:4104]); !errors.Is(err, ErrFault) {
		t.Errorf("copy into the hole: %v", err)
	}

	if err := syscall.Munmap(b); err != nil {
		t.Fatal(err)
	}
	touch(t, p, false, false)
	tab.Release(r)
}

// A file that was cut short raises SIGBUS, not SIGSEGV.
func TestTruncatedFile(t *testing.T) {
	name := t.TempDir() + "/file"
	fd, err := syscall.Open(name, syscall.O_RDWR|syscall.O_CREAT, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	if err := syscall.Ftruncate(fd, 4096); err != nil {
		t.Fatal(err)
	}
	b, err := syscall.Mmap(fd, 0, 4096, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(b)
	tab, pd := newTable(t, 10), NewPD()
	r := register(t, tab, pd, b, 0, allRights) // memory that Go does not manage may come as a slice too
	touch(t, b, true, true)
	if err := syscall.Ftruncate(fd, 0); err != nil {
		t.Fatal(err)
	}
	touch(t, b, false, false)
	tab.Release(r)
}

// Data or tuples of a signature region that went are an error of the transfer, not a
// crash, and no error of the block.
func TestSignatureFault(t *testing.T) {
	tab, pd := NewTable(4, 1), NewPD()
	data, meta := mapPages(t, 2), mapPages(t, 1)
	dif := crcDomain(512)
	r := sigRegion(t, tab, pd, [][]byte{data}, [][]byte{meta}, &ib.SigAttrs{CheckMask: 0xFF, Mem: dif, Wire: dif})
	read := func(off uint64) bool {
		_, ok := tab.Local(pd, r.LKey(), r.Addr()+off, 520, false, nil)
		return ok
	}
	read(0)
	r.SigStatus() // zeros are not what the tags should be
	if err := syscall.Mprotect(meta, syscall.PROT_READ); err != nil {
		t.Fatal(err)
	}
	if !read(0) {
		t.Error("readable tuples are not read")
	}
	r.SigStatus()
	if tab.Arrived(uint32(r.LKey()), r.Addr(), 520) {
		t.Error("a tuple was written where it must not be")
	}
	r.SigStatus()
	if err := syscall.Mprotect(data[:4096], syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	if read(0) || read(7*520) {
		t.Error("blocks that are not there are read")
	}
	if !read(8 * 520) {
		t.Error("a block that is there is not")
	}
	r.SigStatus()
	if err := syscall.Mprotect(meta, syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	if read(8 * 520) {
		t.Error("tuples that are not there are read")
	}
	if e, bad := r.SigStatus(); bad {
		t.Errorf("%+v", e)
	}
	for _, b := range [][]byte{data, meta} {
		if err := syscall.Munmap(b); err != nil {
			t.Fatal(err)
		}
	}
	tab.Release(r)
}
