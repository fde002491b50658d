package proto

import (
	"fmt"
	"strings"
)

// Listens says whether table, the text of /proc/net/tcp or tcp6, has a socket that listens on port.
func Listens(table string, port int) bool {
	want := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(table) {
		// sl, local address, remote address, state; state 0A is TCP_LISTEN.
		if f := strings.Fields(line); len(f) > 3 && f[3] == "0A" && strings.HasSuffix(f[1], want) {
			return true
		}
	}
	return false
}
