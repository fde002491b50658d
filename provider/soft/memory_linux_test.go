package soft

import (
	"bytes"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// A loop that polls an empty queue, on the only processor, starves neither the
// garbage collector nor timers.
func TestPollLoopLetsOthersRun(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	h := newHost(t, setup{})
	var ticks atomic.Int32
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for tick := time.NewTicker(time.Millisecond); !stop.Load(); ticks.Add(1) {
			<-tick.C
		}
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var cycles atomic.Int32
	wg.Go(func() {
		for !stop.Load() {
			runtime.GC()
			cycles.Add(1)
		}
	})
	var wcs [4]driver.WC
	for polls := 0; ticks.Load() < 20 || cycles.Load() < 5; polls++ {
		if n, err := h.cq.Poll(wcs[:]); n != 0 || err != nil {
			t.Fatal(n, err)
		}
		if polls == 50_000_000 {
			t.Fatalf("%d ticks, %d collections in %d polls", ticks.Load(), cycles.Load(), polls)
		}
	}
	stop.Store(true)
	wg.Wait()
	if runtime.ReadMemStats(&after); after.NumGC-before.NumGC < 5 {
		t.Fatalf("%d collections", after.NumGC-before.NumGC)
	}
}

// collect runs the garbage collector until finalizers had their chance.
func collect() {
	for range 5 {
		runtime.GC()
	}
}

// Whoever drops every reference to a region, its domain and its queue pair still
// has registered memory: the peer writes it, reads it, and reads what it wrote.
func TestRegionOutlivesReferences(t *testing.T) {
	ha := newHost(t, setup{})
	const n = 32 << 10
	var addr uint64
	var rkey ib.RKey
	a := ha.qp(ib.RC, 0)
	port, dev := func() (*host, *Device) {
		h := newHost(t, setup{})
		b := h.qp(ib.RC, 0)
		join(a, b, ib.MTU4096)
		func() {
			pd, err := h.dev.AllocPD()
			must(t, err)
			mr, err := pd.RegMR(bytes.Repeat([]byte{0x5A}, n), 0, false, allRights)
			must(t, err)
			addr, rkey = mr.Addr(), mr.RKey()
			// A queue pair reaches regions of its own domain only.
			at := h.attr(ib.RC)
			q, err := h.dev.CreateQP(pd, at, nil)
			must(t, err)
			e := &end{q, h, 0, ib.RC}
			must(t, a.Modify(&ib.QPAttr{QPState: ib.QPStateReset}, ib.QPAttrState))
			join(a, e, ib.MTU4096)
		}()
		return h, h.dev
	}()
	port.rest = port.rest[:0] // what is left is the device's
	collect()
	waste := make([][]byte, 0, 64) // takes freed memory, if there is any
	for range 64 {
		waste = append(waste, make([]byte, n))
	}
	for round := range 3 {
		a.send(driver.SendWR{Opcode: ib.WRRDMARead, SGList: ha.sge(0, n), RemoteAddr: addr, RKey: rkey})
		ha.ok()
		if want := bytes.Repeat([]byte{byte(0x5A + round)}, n); !bytes.Equal(ha.buf[:n], want) {
			t.Fatalf("round %d: the memory changed", round)
		}
		for i := range n {
			ha.buf[i] = byte(0x5A + round + 1)
		}
		a.send(driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: ha.sge(0, n), RemoteAddr: addr, RKey: rkey})
		ha.ok()
		collect()
	}
	for _, w := range waste {
		if !bytes.Equal(w, make([]byte, n)) {
			t.Fatal("a WRITE hit memory that is not registered")
		}
	}
	// Close unpins what is left: a pinner that is collected would end the process.
	must(t, dev.Close())
	port.dev = emptyDevice(t)
	collect()
}

// emptyDevice stands in for one that the test closed with objects left.
func emptyDevice(t testing.TB) *Device {
	t.Helper()
	return newHost(t, setup{}).dev
}

// A device that is closed and dropped with everything in it registered, posted
// and waiting takes the process nowhere; its objects refuse work.
func TestClosedDeviceIsHarmless(t *testing.T) {
	for range 3 {
		func() {
			ha, hb := newHost(t, setup{}), newHost(t, setup{})
			a, b := ha.qp(ib.RC, 0), hb.qp(ib.RC, 0)
			join(a, b, ib.MTU1024)
			for range 16 {
				a.send(driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: ha.sge(0, 60_000), RemoteAddr: hb.mr.Addr(), RKey: hb.mr.RKey()})
				b.recv(0, 0, 8)
			}
			must(t, ha.dev.Close())
			must(t, hb.dev.Close())
			collect()
			_, _ = a.PostSend([]driver.SendWR{{Opcode: ib.WRRDMAWrite, SGList: ha.sge(0, 8)}})
			_, _ = b.PostRecv([]driver.RecvWR{{}})
			_, _ = ha.cq.Poll(make([]driver.WC, 4))
			if _, err := ha.dev.AllocPD(); !errors.Is(err, syscall.EIO) {
				t.Errorf("domain of a closed device: %v", err)
			}
			if _, err := ha.pd.RegMR(make([]byte, 8), 0, false, 0); !errors.Is(err, syscall.EIO) {
				t.Errorf("region of a closed device: %v", err)
			}
			if err := a.init(); err == nil {
				t.Error("modify to INIT from RTS")
			}
		}()
	}
	collect()
}

// gone registers memory and takes it away: not by unmapping it, for then
// somebody else's could be there at once.
func (h *host) gone(n int) driver.MR {
	h.t.Helper()
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	must(h.t, err)
	mr, err := h.pd.RegMRPointer(uintptr(mem.Address(m)), uint64(n), 0, false, allRights)
	must(h.t, err)
	must(h.t, unix.Mprotect(m, unix.PROT_NONE))
	h.later(func() error { return errors.Join(mr.Dereg(), unix.Munmap(m)) })
	return mr
}

// Memory that vanishes under a registration is an error of the work that
// touches it, on whichever side, and nothing more.
func TestMemoryVanishes(t *testing.T) {
	const n = 64 << 10
	for _, size := range []int{8, 4096, n} {
		for _, c := range []struct {
			what     string
			op       ib.WROpcode
			local    bool // the requester's memory is gone, else the responder's
			recv     bool
			want     ib.WCStatus
			wantRecv ib.WCStatus
		}{
			{"send from", ib.WRSend, true, false, ib.WCLocProtErr, 0},
			{"write from", ib.WRRDMAWrite, true, false, ib.WCLocProtErr, 0},
			{"read to", ib.WRRDMARead, true, false, ib.WCLocProtErr, 0},
			{"write to", ib.WRRDMAWrite, false, false, ib.WCRemAccessErr, 0},
			{"read from", ib.WRRDMARead, false, false, ib.WCRemAccessErr, 0},
			{"send to", ib.WRSend, false, true, ib.WCRemOpErr, ib.WCLocProtErr},
			{"atomic on", ib.WRAtomicFetchAndAdd, false, false, ib.WCRemAccessErr, 0},
			{"atomic to", ib.WRAtomicFetchAndAdd, true, false, ib.WCLocProtErr, 0},
		} {
			if c.op == ib.WRAtomicFetchAndAdd && size != 8 {
				continue
			}
			ha, hb := newHost(t, setup{}), newHost(t, setup{})
			a, b := ha.qp(ib.RC, 0), hb.qp(ib.RC, 0)
			join(a, b, ib.MTU1024)
			wr := driver.SendWR{Opcode: c.op, SGList: ha.sge(0, size), RemoteAddr: hb.mr.Addr(), RKey: hb.mr.RKey()}
			if c.local {
				mr := ha.gone(n)
				wr.SGList = []driver.SGE{{Addr: mr.Addr(), Length: uint32(size), LKey: mr.LKey()}}
			} else {
				mr := hb.gone(n)
				wr.RemoteAddr, wr.RKey = mr.Addr(), mr.RKey()
				if c.recv {
					_, err := b.PostRecv([]driver.RecvWR{{SGList: []driver.SGE{{Addr: mr.Addr(), Length: n, LKey: mr.LKey()}}}})
					must(t, err)
				}
			}
			a.send(wr)
			if got := wcFrom(t, ha.cq, ha.dev); got.Status != c.want {
				t.Errorf("%s vanished memory, %d bytes: %v, want %v", c.what, size, got.Status, c.want)
			}
			if c.recv {
				if got := wcFrom(t, hb.cq, hb.dev); got.Status != c.wantRecv {
					t.Errorf("%s vanished memory, %d bytes: receive %v, want %v", c.what, size, got.Status, c.wantRecv)
				}
			}
			// The devices live.
			x, y := ha.qp(ib.RC, 0), hb.qp(ib.RC, 0)
			join(x, y, ib.MTU1024)
			x.send(driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: ha.sge(0, 8), RemoteAddr: hb.mr.Addr(), RKey: hb.mr.RKey()})
			ha.ok()
		}
	}
}
