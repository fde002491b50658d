//go:build !race

package rdma_test

// raceEnabled tells that the race detector is at work, which allocates.
const raceEnabled = false
