//go:build race

package soft

// raceEnabled tells that the race detector slows everything down, and allocates.
const raceEnabled = true
