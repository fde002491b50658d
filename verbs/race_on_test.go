//go:build race

package verbs_test

// raceEnabled tells that the race detector slows everything down.
const raceEnabled = true
