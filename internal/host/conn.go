package host

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// A member's connection records are words that it alone writes, and that who buries it
// reads. Each record has a word that says which of two copies is valid (0: none). The
// other copy is written and then the word changed: whenever the owner dies, there is a
// whole record or none.
//
//	words 0 to maxConns-1         which: 0, 1, 2
//	then 2*recWords for each      the copies
type connWordsOf []uint64

// Words of a copy.
const (
	recLocal  = 0 // 2 words
	recRemote = 2 // 2 words
	recIDs    = 4 // local:32 | remote:32
	recQPNs   = 5
	recPSNs   = 6
	recRest   = 7 // state:8 | hop limit:8 | traffic class:8 | 1: local is IPv4, 2: remote is IPv4
)

func copyAt(i, which int) int { return maxConns + (2*i+which-1)*recWords }

func (c connWordsOf) put(at int, r *driver.ConnRecord) {
	var flags uint64
	for n, a := range [2]netip.Addr{r.Local, r.Remote} {
		a = a.Unmap()
		if a.Is4() {
			flags |= 1 << n
		}
		b := a.As16()
		atomic.StoreUint64(&c[at+2*n], binary.BigEndian.Uint64(b[:8]))
		atomic.StoreUint64(&c[at+2*n+1], binary.BigEndian.Uint64(b[8:]))
	}
	atomic.StoreUint64(&c[at+recIDs], uint64(r.LocalID)<<32|uint64(r.RemoteID))
	atomic.StoreUint64(&c[at+recQPNs], uint64(r.LocalQPN)<<32|uint64(r.RemoteQPN))
	atomic.StoreUint64(&c[at+recPSNs], uint64(r.LocalPSN)<<32|uint64(r.RemotePSN))
	atomic.StoreUint64(&c[at+recRest], uint64(r.State)<<24|uint64(r.HopLimit)<<16|uint64(r.TrafficClass)<<8|flags)
}

func (c connWordsOf) get(at int, r *driver.ConnRecord) {
	rest := atomic.LoadUint64(&c[at+recRest])
	for n, a := range [2]*netip.Addr{&r.Local, &r.Remote} {
		var b [16]byte
		binary.BigEndian.PutUint64(b[:8], atomic.LoadUint64(&c[at+2*n]))
		binary.BigEndian.PutUint64(b[8:], atomic.LoadUint64(&c[at+2*n+1]))
		if *a = netip.AddrFrom16(b); rest>>n&1 != 0 {
			*a = netip.AddrFrom4([4]byte(b[12:]))
		}
	}
	w := atomic.LoadUint64(&c[at+recIDs])
	r.LocalID, r.RemoteID = uint32(w>>32), uint32(w)
	w = atomic.LoadUint64(&c[at+recQPNs])
	r.LocalQPN, r.RemoteQPN = ib.QPN(w>>32)&ib.QPN(1<<24-1), ib.QPN(w)&ib.QPN(1<<24-1)
	w = atomic.LoadUint64(&c[at+recPSNs])
	r.LocalPSN, r.RemotePSN = uint32(w>>32)&(1<<24-1), uint32(w)&(1<<24-1)
	r.State, r.HopLimit, r.TrafficClass = uint8(rest>>24), uint8(rest>>16), uint8(rest>>8)
}

// list gives the valid ones of the first n records. Those whose local ID is not of the
// slot's are no records.
func (c connWordsOf) list(slot int, n uint64) (list []driver.ConnRecord, garbage uint64) {
	for i := range int(min(n, maxConns)) {
		which := atomic.LoadUint64(&c[i])
		if which == 0 {
			continue
		}
		var r driver.ConnRecord
		if which <= 2 {
			c.get(copyAt(i, int(which)), &r)
		}
		if which > 2 || r.LocalID>>CommBits != uint32(slot) {
			garbage++
			continue
		}
		list = append(list, r)
	}
	return list, garbage
}

// conns are a member's own records.
type conns struct {
	d    dir
	w    connWordsOf
	slot int
	gen  uint32
	step func(string)

	mu   sync.Mutex
	free []int32
	used int // records from here on were never used
}

// add writes a new record.
func (c *conns) add(r *driver.ConnRecord) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var i int
	switch n := len(c.free); {
	case n > 0:
		i, c.free = int(c.free[n-1]), c.free[:n-1]
	case c.used < maxConns:
		i = c.used
		c.used++
		c.d.store(slotAt(c.slot, slotConns), uint64(c.used))
	default:
		return 0, fmt.Errorf("host: %d connections are recorded: %w", maxConns, syscall.ENOMEM)
	}
	c.step("conn:begun")
	c.w.put(copyAt(i, 1), r)
	c.step("conn:written")
	atomic.StoreUint64(&c.w[i], 1)
	c.step("conn:valid")
	c.d.index(c.slot, c.gen, r)
	c.step("conn:recorded")
	return i, nil
}

// update changes a record.
func (c *conns) update(i int, old, r *driver.ConnRecord) {
	which := 1
	if atomic.LoadUint64(&c.w[i]) == 1 {
		which = 2
	}
	c.w.put(copyAt(i, which), r)
	c.step("conn:rewritten")
	atomic.StoreUint64(&c.w[i], uint64(which))
	c.step("conn:switched")
	if old.RemoteID != r.RemoteID || old.Remote != r.Remote {
		c.d.unindex(c.slot, c.gen, old)
		c.step("conn:unindexed")
		c.d.index(c.slot, c.gen, r)
	}
	c.step("conn:updated")
}

// remove takes a record back.
func (c *conns) remove(i int, r *driver.ConnRecord) {
	atomic.StoreUint64(&c.w[i], 0)
	c.step("conn:void")
	c.d.unindex(c.slot, c.gen, r)
	c.step("conn:removed")
	c.mu.Lock()
	c.free = append(c.free, int32(i))
	c.mu.Unlock()
}
