//go:build !race

package rdmarw_test

// raceEnabled tells that the race detector slows everything down, and allocates.
const raceEnabled = false
