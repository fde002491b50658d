package soft

import (
	"testing"

	"go.uber.org/goleak"
)

// Every goroutine ends with the device that started it.
func TestMain(m *testing.M) {
	beSomebody()
	goleak.VerifyTestMain(m)
}
