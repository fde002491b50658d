//go:build !amd64 || purego

package pi

func detect() way { return byTables }

func fold(bool, uint16, []byte) uint16 { panic("pi: no fold") }
