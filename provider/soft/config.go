package soft

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/verbena-rdma/verbena/internal/port"
	"github.com/verbena-rdma/verbena/internal/trace"
)

// Config describes a device to make with NewDevice.
type Config struct {
	Name    string // device name, for instance soft_eth0
	NetDev  string // interface that the addresses belong to, "" for none
	IfIndex int
	GUID    uint64 // node GUID, not 0
	LinkMTU int    // MTU of the interface in bytes, 0 = 65,536

	// Addrs are the GID table in order: unicast addresses of this host.
	Addrs []netip.Addr

	// FixedAddrs: somebody has chosen Addrs. What Watch reports then empties and
	// fills their entries, but adds none.
	FixedAddrs bool
	// Watch follows the interface; nil: it never changes.
	Watch Watch

	// Port carries the packets. The device closes it.
	Port port.Port

	// Limits makes it other than devices are by themselves.
	Limits Limits

	// sharing is this device's part in the group that shares Port's addresses; nil: none.
	// The device leaves it when it is closed.
	sharing *sharing

	// Clock is a monotonic clock in ns; nil: the system's.
	Clock func() int64
	// Seed makes numbers and keys reproducible; 0: random ones.
	Seed uint64
	// Shards is the number of locks over which queue pairs are spread; 0: 1.
	Shards int
	// Manual devices make progress only in Turn.
	Manual bool

	// WaitSpin is how long CQ.Wait polls before it sleeps; 0: 30 us, or not at all
	// with GOMAXPROCS=1; negative: not at all, which saves processor time and costs
	// a wake-up for every message.
	WaitSpin time.Duration

	Logger *slog.Logger // nil: none

	// Trace is shown every packet; nil: nobody looks.
	Trace trace.Recorder
	// Capture tells where packets are written to; nil: nowhere.
	Capture *Capture
}

var epoch = time.Now()

// monotonic is the default clock: ns since the process started, never 0.
func monotonic() int64 { return int64(time.Since(epoch)) + 1 }
