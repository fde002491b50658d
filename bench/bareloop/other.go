//go:build !linux || !(amd64 || arm64)

package bareloop

import "github.com/verbena-rdma/verbena/bench"

const supported = false

// Roles returns the roles that this package plays in a child process.
func Roles() map[string]bench.Role { return nil }
