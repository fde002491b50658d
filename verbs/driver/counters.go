package driver

// Counter is a counter with its name.
type Counter struct {
	Name  string
	Value uint64
}

// DeviceCounter is implemented by devices that count.
type DeviceCounter interface {
	// PortCounters lists the counters of a port that every InfiniBand port has (IBA
	// 16.1.3.5), under the names of Linux's sysfs. EINVAL: no such port.
	PortCounters(port uint8) ([]Counter, error)
	// HWCounters lists the device's own counters of a port, under the names of
	// Linux's hw_counters; port 0 is the whole device. EINVAL: no such port.
	HWCounters(port uint8) ([]Counter, error)
}

// QPCounter is implemented by queue pairs that count.
type QPCounter interface {
	// Counters lists what this queue pair counted since it was made. EINVAL: it
	// was destroyed.
	Counters() ([]Counter, error)
}
