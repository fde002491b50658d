//go:build unix && !solaris && !aix

package capture

import (
	"os"

	"golang.org/x/sys/unix"
)

// lock keeps others from emptying the file. The system lets go of it with the
// last descriptor, also when the process is killed.
func lock(f *os.File) error {
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return err
	}
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
}
