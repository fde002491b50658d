package store

import (
	"errors"
	"syscall"
	"testing"
)

// More memory than any machine has is an error, and not the end of the program.
func TestNoRoom(t *testing.T) {
	if _, err := NewMemory(1<<47, 512, true); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%v, want ENOMEM", err)
	}
}
