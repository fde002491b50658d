//go:build race

package mem

// raceDetector: its own code runs the atomic instructions, outside of Go, where
// a fault is fatal unless already a read of the memory faults.
const raceDetector = true
