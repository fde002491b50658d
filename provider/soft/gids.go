package soft

import (
	"fmt"
	"hash/fnv"
	"net/netip"
	"os"
	"sync"

	"github.com/verbena-rdma/verbena/ib"
)

// gidTable is the GID table of the device's port.
type gidTable struct {
	mu      sync.RWMutex
	entries []ib.GIDEntry
	addrs   []netip.Addr // with zones; of an empty entry invalid, or the address that it waits for
	seen    []bool       // the interface had the address

	past  [pastAddrs]netip.Addr // that left the table last, in a ring
	leave int                   // the place of the next
}

// pastAddrs is how many addresses are remembered that the device had.
const pastAddrs = 16

func (t *gidTable) set(cfg Config) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, a := range cfg.Addrs {
		if a.Is6() && a.IsLinkLocalUnicast() && a.Zone() == "" && cfg.NetDev != "" {
			a = a.WithZone(cfg.NetDev)
		}
		t.addrs, t.entries, t.seen = append(t.addrs, a), append(t.entries, ib.GIDEntry{}), append(t.seen, false)
		t.put(i, a, cfg.NetDev, cfg.IfIndex)
	}
}

// put fills a row. The caller holds the lock.
func (t *gidTable) put(i int, a netip.Addr, netdev string, ifindex int) {
	t.addrs[i] = a
	t.entries[i] = ib.GIDEntry{
		GID: ib.GIDFromAddr(a.WithZone("")), Index: i, Port: portNum, Type: ib.GIDTypeRoCEv2,
		NetDev: netdev, IfIndex: ifindex,
	}
}

// entry gives a row; EINVAL beyond the table, ENODATA for an empty row.
func (t *gidTable) entry(i int) (ib.GIDEntry, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	switch {
	case i < 0 || i >= gidTableLen:
		return ib.GIDEntry{}, invalid("index", "%d, the GID table has %d entries", i, gidTableLen)
	case i >= len(t.entries) || t.entries[i].GID.IsZero():
		return ib.GIDEntry{}, &paramError{"index", fmt.Sprintf("%d of the GID table is empty", i), ib.ErrNoData}
	}
	return t.entries[i], nil
}

// addr gives the address of a row for use as a source; EINVAL for an empty one.
func (t *gidTable) addr(i int) (netip.Addr, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if i < 0 || i >= len(t.addrs) || t.entries[i].GID.IsZero() {
		return netip.Addr{}, invalid("AHAttr.SGIDIndex", "%d of the GID table is empty", i)
	}
	return t.addrs[i], nil
}

// all lists the addresses of the rows that are not empty.
func (t *gidTable) all() (list []netip.Addr) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for i, a := range t.addrs {
		if !t.entries[i].GID.IsZero() {
			list = append(list, a)
		}
	}
	return list
}

// guidFromName makes a GUID for an interface without hardware address: stable
// on this machine, different from one machine to the next.
func guidFromName(name string) uint64 {
	h := fnv.New64a()
	id, err := os.ReadFile("/etc/machine-id")
	if err != nil {
		host, _ := os.Hostname()
		id = []byte(host)
	}
	h.Write(id)
	h.Write([]byte(name))
	// Bit 1 of the first byte: locally administered, as EUI-64 has it.
	return h.Sum64() | 0x02<<56
}
