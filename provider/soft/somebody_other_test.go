//go:build !linux

package soft

func beSomebody() {}
