//go:build interop && linux

package netns

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// agentEnv makes the test binary an agent: a process with devices in a namespace.
const agentEnv = "VERBENA_NETNS_AGENT"

func TestMain(m *testing.M) {
	if role := os.Getenv(agentEnv); role != "" {
		os.Exit(runAgent(role))
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "netns: these tests make network namespaces and need root")
		os.Exit(1)
	}
	begin := time.Now()
	code := m.Run()
	fmt.Printf("netns: %.1f s\n", time.Since(begin).Seconds())
	os.Exit(code)
}
