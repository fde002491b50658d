package bareloop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/bench"
)

// TestMain lets the test binary play the roles that it starts.
func TestMain(m *testing.M) {
	if served, err := bench.ServeRole(Roles()); served {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestWorkloads moves real packets between two processes for a moment; a packet with a wrong CRC is an error of the workload.
func TestWorkloads(t *testing.T) {
	for _, w := range Workloads() {
		t.Run(w.Name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			results, err := w.Run(ctx, bench.Options{Duration: 50 * time.Millisecond, Cores: bench.Cores()})
			if errors.Is(err, bench.ErrUnavailable) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(results) == 0 {
				t.Fatal("no result")
			}
			for _, m := range results {
				if m.Value <= 0 {
					t.Errorf("result %+v", m)
				}
				t.Logf("%+v", m)
			}
		})
	}
}
