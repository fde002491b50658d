//go:build !linux

package bench

// Load returns 0: only Linux is asked.
func Load() float64 { return 0 }
