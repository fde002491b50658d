package rc

import (
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// vanishing registers memory that is not accessible any more.
func vanishing(s *side) *mem.Region {
	t := s.w.t
	t.Helper()
	b, err := syscall.Mmap(-1, 0, 64<<10, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Munmap(b) })
	r := s.register(b, allRemote|ib.AccessLocalWrite)
	if err := syscall.Mprotect(b, syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return r
}

// Memory that vanished under its registration is a protection error of the side
// that owns it.
func TestVanishedMemory(t *testing.T) {
	for _, r := range []struct {
		name   string
		op     ib.WROpcode
		remote bool // B's memory has gone
		n      int
		a, b   string
		nak    string
	}{
		{"source of a WRITE", ib.WRRDMAWrite, false, 5000, "local protection error", "", ""},
		{"source of a small SEND", ib.WRSend, false, 8, "local protection error", "", ""},
		{"sink of a READ", ib.WRRDMARead, false, 5000, "local protection error", "", "-"},
		{"sink of an atomic", ib.WRAtomicFetchAndAdd, false, 8, "local protection error", "", "-"},
		{"target of a WRITE", ib.WRRDMAWrite, true, 5000, "remote access error", "", "62@0"},
		{"source of a READ", ib.WRRDMARead, true, 5000, "remote access error", "", "62@0"},
		{"source of a small READ", ib.WRRDMARead, true, 8, "remote access error", "", "62@0"},
		{"target of an atomic", ib.WRAtomicFetchAndAdd, true, 8, "remote access error", "", "62@0"},
		{"receive buffer", ib.WRSend, true, 2000, "remote operation error", "7:local protection error", "63@0"},
	} {
		t.Run(r.name, func(t *testing.T) {
			o := defaults()
			w := newWorld(t, o)
			wr := w.a.atomicWR(1, r.op, 0, 0, 1, 0)
			wr.SGList[0].Length = uint32(r.n)
			if r.remote {
				m := vanishing(w.b)
				wr.RemoteAddr, wr.RKey = m.Addr(), m.RKey()
				if r.op == ib.WRSend {
					w.b.recv(7, driver.SGE{Addr: m.Addr(), Length: 5000, LKey: m.LKey()})
				}
			} else {
				m := vanishing(w.a)
				wr.SGList[0].Addr, wr.SGList[0].LKey = m.Addr(), m.LKey()
			}
			w.a.post(wr)
			w.run(0)
			w.want("A", wcs(w.a.scq), "1:"+r.a)
			w.want("B", wcs(w.b.rcq), r.b)
			if r.nak != "-" {
				w.want("NAK", w.ops(w.b, o.psn), r.nak)
			}
			w.idle()
		})
	}
}
