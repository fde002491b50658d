package capture

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Name replaces {device} by the device's name and {pid} by the process's number.
func Name(path, device string) string {
	return strings.NewReplacer("{device}", device, "{pid}", strconv.Itoa(os.Getpid())).Replace(path)
}

// Create makes the file of a capture, or empties it. EBUSY: a capture is being
// written to it, by this process or another.
func Create(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	if err := lock(f); err != nil {
		if errors.Is(err, syscall.EAGAIN) {
			err = fmt.Errorf("another device writes to it; {device} and {pid} in the name make it unique: %w", syscall.EBUSY)
		}
		return nil, errors.Join(fmt.Errorf("capture: %s: %w", name, err), f.Close())
	}
	// What is not a plain file (a pipe, /dev/stdout) has no length.
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
		if err := f.Truncate(0); err != nil {
			return nil, errors.Join(fmt.Errorf("capture: %w", err), f.Close())
		}
	}
	return f, nil
}
