package soft

import (
	"os"
	"slices"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

var _ driver.AddrSharer = (*Device)(nil)

// Sharers implements driver.AddrSharer.
func (d *Device) Sharers() []int {
	if d.cfg.sharing == nil {
		return nil
	}
	var pids []int
	for _, m := range d.cfg.sharing.group.Members() {
		if m.PID != os.Getpid() {
			pids = append(pids, m.PID)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}
