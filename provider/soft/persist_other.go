//go:build !linux

package soft

import "github.com/verbena-rdma/verbena/internal/mem"

// persister is nil: persistent flushes are not offered.
func persister() mem.Persister { return nil }
