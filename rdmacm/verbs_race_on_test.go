//go:build race

package rdmacm_test

// vrace tells that the race detector is at work.
const vrace = true
