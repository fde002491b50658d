//go:build unix && !solaris && !aix

package capture

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// lockedElsewhere wants a second capture to be refused.
func lockedElsewhere(name string) error {
	f, err := Create(name)
	if err == nil {
		f.Close()
		return errors.New("two captures have the file")
	}
	if !errors.Is(err, syscall.EBUSY) || !strings.Contains(err.Error(), "{pid}") {
		return fmt.Errorf("a busy file gives %w", err)
	}
	return nil
}
