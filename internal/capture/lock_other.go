//go:build !unix || solaris || aix

package capture

import "os"

// lock does nothing: these systems have no lock of this kind.
func lock(*os.File) error { return nil }
