package mem

import (
	"errors"
	"testing"
)

func TestPersistWholePages(t *testing.T) {
	tab := newTable(t, 1)
	b := make([]byte, 3*4096)
	if err := tab.Persist(b); !errors.Is(err, errors.ErrUnsupported) || tab.CanPersist() {
		t.Errorf("without means: %v, %v", err, tab.CanPersist())
	}
	var at, n uintptr
	failed := errors.New("disk is full")
	tab.SetPersister(4096, func(addr, length uintptr) error {
		at, n = addr, length
		return failed
	})
	if !tab.CanPersist() {
		t.Error("has the means now")
	}
	b = b[(4096-address(b)%4096)%4096:]
	if err := tab.Persist(b[100:200]); err != failed || n != 200 || at != address(b) {
		t.Errorf("%v, %d bytes", err, n)
	}
	if err := tab.Persist(b[4096:4097]); err != failed || n != 1 || at != address(b)+4096 {
		t.Errorf("%v, %d bytes", err, n)
	}
	n = 0
	for _, p := range [][]byte{nil, b[100:100], null[:10]} {
		if err := tab.Persist(p); err != nil || n != 0 {
			t.Errorf("%v, %d bytes", err, n)
		}
	}
}
