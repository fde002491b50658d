package soft

import "github.com/verbena-rdma/verbena/ib"

// extendedCaps are the capability flags of RDMA FLUSH and ATOMIC WRITE.
func (d *Device) extendedCaps() uint64 {
	caps := uint64(ib.DeviceCapFlushGlobal | ib.DeviceCapAtomicWrite)
	if d.table.CanPersist() {
		caps |= ib.DeviceCapFlushPersistent
	}
	return caps
}
