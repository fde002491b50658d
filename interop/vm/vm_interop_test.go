//go:build interop && linux

package vm_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/interop/vm"
)

func TestGuest(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	begin := time.Now()
	v, err := vm.Start(ctx, vm.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	t.Logf("kernel %s, %s, booted in %v", v.Release(), v.Accel(), time.Since(begin))
	for _, c := range []string{"ibv_devinfo -v", "ip a", "uname -a", "ls /tmp /sys/class/infiniband/rxe0/ports/1/hw_counters"} {
		begin := time.Now()
		r, err := v.Run(ctx, strings.Fields(c)...)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(time.Since(begin), r)
	}
	log, _ := v.KernelLog(ctx)
	t.Log(log[max(0, len(log)-2000):])
}
