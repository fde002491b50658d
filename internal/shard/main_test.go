package shard

import (
	"testing"

	"go.uber.org/goleak"
)

// Every goroutine ends with the engine that started it.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
