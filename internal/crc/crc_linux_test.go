package crc

import (
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
)

// island returns a page of memory between two that nobody may touch, and the whole.
func island(t *testing.T) (page, all []byte) {
	t.Helper()
	size := syscall.Getpagesize()
	all, err := syscall.Mmap(-1, 0, 3*size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Munmap(all); err != nil {
			t.Error(err)
		}
	})
	for _, sea := range [][]byte{all[:size], all[2*size:]} {
		if err := syscall.Mprotect(sea, syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return all[size : 2*size : 2*size], all
}

// Nothing outside the bytes is read, not even within the same 16: memory may end there.
func TestReadsNothingOutside(t *testing.T) {
	page, _ := island(t)
	copy(page, random(rand.New(rand.NewPCG(5, 0)), len(page)))
	for n := range 1101 {
		for _, b := range [][]byte{page[:n], page[len(page)-n:]} {
			if got, want := Update(7, b), want(7, b); got != want {
				t.Fatalf("%d bytes: got %#x, want %#x", n, got, want)
			}
		}
	}
}

// A fault is a panic with its address, and afterwards all is as before.
func TestFault(t *testing.T) {
	page, all := island(t)
	copy(page, random(rand.New(rand.NewPCG(6, 0)), len(page)))
	whole := want(0, page)
	sum := func(b []byte) (err error) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() {
			r := recover()
			if f, ok := r.(interface {
				runtime.Error
				Addr() uintptr
			}); ok {
				err = f
			} else if r != nil {
				panic(r)
			}
		}()
		Update(0, b)
		return nil
	}
	for _, n := range []int{16, 20, 40, 100, 130, 300, 500, 600, 1000, len(page)} {
		for in := range n { // how many bytes there are before the end
			end := 2 * len(page)
			if sum(all[end-in:end-in+n]) == nil {
				t.Fatalf("%d bytes of which %d are there: no fault", n, in)
			}
			if n == len(page) && in > 700 {
				break
			}
		}
		if err := sum(all[len(page)-1:][:n]); err == nil {
			t.Fatalf("%d bytes, the first not there: no fault", n)
		}
		if got := Update(0, page); got != whole {
			t.Fatalf("after faults: got %#x, want %#x", got, whole)
		}
	}
}
