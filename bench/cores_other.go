//go:build !linux

package bench

import "runtime"

// Cores returns two processors, the same one twice when there is only one.
func Cores() [2]int {
	if runtime.NumCPU() < 2 {
		return [2]int{}
	}
	return [2]int{0, 1}
}
