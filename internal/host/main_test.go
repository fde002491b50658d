package host

import (
	"testing"

	"go.uber.org/goleak"
)

// Every goroutine ends with the group that started it.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
