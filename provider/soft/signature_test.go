package soft

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// sigSides is pair with queue pairs that register signature regions.
func sigSides(t testing.TB, size int) (a, b *side) {
	tune := func(attr *driver.QPInitAttr) { attr.IntegrityEn = true }
	a, b = newSide(t, ib.RC, size, tune), newSide(t, ib.RC, size, tune)
	a.connect(t, b, ib.MTU4096)
	b.connect(t, a, ib.MTU4096)
	return a, b
}

// signed registers a signature region on the side's queue pair.
func (s *side) signed(t testing.TB, data, meta []byte, a *ib.SigAttrs) driver.SigMR {
	t.Helper()
	m, err := s.pd.(driver.IntegrityPD).AllocMRIntegrity(1, 1)
	must(t, err)
	t.Cleanup(func() { must(t, m.Dereg()) })
	list := [][]byte{meta}
	if meta == nil {
		list = nil
	}
	_, err = m.MapSGPI([][]byte{data}, 0, list, 0, 4096)
	must(t, err)
	must(t, m.SetSigAttrs(a))
	s.post(t, driver.SendWR{
		Opcode: ib.WRRegMRIntegrity, RKey: m.RKey(),
		Bind: &driver.BindInfo{MR: m, Access: ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead},
	})
	s.wait(t)
	return m
}

func wireCRC(interval int) ib.SigDomain {
	return ib.SigDomain{SigType: ib.SigTypeT10DIF, DIF: ib.T10DIFDomain{PIInterval: interval, RefRemap: true, AppEscape: true, AppTagCheckMask: 0xFFFF}}
}

// Over real sockets, with the device's own threads: made here, checked and kept there,
// written and read, whole and with a block that changed in between.
func TestSignatureOverSockets(t *testing.T) {
	const blocks = 512
	a, b := sigSides(t, blocks*520)
	for i := range a.buf {
		a.buf[i] = byte(i * 31 >> 3)
	}
	data, meta := make([]byte, blocks*512), make([]byte, blocks*8)
	wire := wireCRC(512)
	from := a.signed(t, a.buf[:blocks*512], nil, &ib.SigAttrs{CheckMask: 0xFF, Wire: wire})
	into := b.signed(t, data, meta, &ib.SigAttrs{CheckMask: 0xFF, Mem: wire, Wire: wire})
	all := []driver.SGE{{Addr: from.Addr(), Length: uint32(from.Length()), LKey: from.LKey()}}
	sync := func() { // the race detector does not see the order that packets make
		a.dev.eng.Quiesce()
		b.dev.eng.Quiesce()
	}
	a.post(t, driver.SendWR{Opcode: ib.WRRDMAWrite, SGList: all, RemoteAddr: into.Addr(), RKey: into.RKey()})
	a.wait(t)
	sync()
	if e, bad := into.CheckStatus(); bad || !bytes.Equal(data, a.buf[:blocks*512]) {
		t.Errorf("WRITE: %+v", e)
	}
	// The way back: what stands there is read, and stripped here.
	data[300*512] ^= 1
	clear(a.buf[:blocks*512])
	sync()
	a.post(t, driver.SendWR{Opcode: ib.WRRDMARead, SGList: all, RemoteAddr: into.Addr(), RKey: into.RKey()})
	a.wait(t)
	sync()
	for _, m := range []driver.SigMR{from, into} {
		e, bad := m.CheckStatus()
		if !bad || e.Type != ib.SigBadGuard || e.SigErrOffset != 300*520 || e.Key != uint32(m.RKey()) {
			t.Errorf("READ: %+v, %v", e, bad)
		}
	}
	if !bytes.Equal(data, a.buf[:blocks*512]) {
		t.Error("READ: other bytes")
	}
}

// BenchmarkWriteSignature is BenchmarkWrite with protection information: made at the
// sender, checked and left out at the receiver, or both.
func BenchmarkWriteSignature(b *testing.B) {
	for _, size := range []int{4096, 65536, 1 << 20} {
		for _, interval := range []int{512, 4096} {
			for _, way := range []string{"none", "insert", "strip", "both"} {
				if way == "none" && interval != 512 {
					continue
				}
				b.Run(fmt.Sprintf("%d/%d/%s", size, interval, way), func(b *testing.B) {
					src, dst := sigSides(b, size/interval*(interval+8))
					sge, to := src.sge(0, size), dst.mr
					a := &ib.SigAttrs{CheckMask: 0xFF, Wire: wireCRC(interval)}
					if way == "insert" || way == "both" {
						m := src.signed(b, src.buf[:size], nil, a)
						sge = []driver.SGE{{Addr: m.Addr(), Length: uint32(m.Length()), LKey: m.LKey()}}
					} else if way == "strip" {
						sge = src.sge(0, len(src.buf))
					}
					if way == "strip" || way == "both" {
						to = dst.signed(b, dst.buf[:size], nil, a)
					}
					stop := poller(dst)
					defer stop()
					wr := []driver.SendWR{{Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled, SGList: sge, RemoteAddr: to.Addr(), RKey: to.RKey()}}
					wcs := make([]driver.WC, 16)
					b.SetBytes(int64(size))
					b.ReportAllocs()
					b.ResetTimer()
					for posted, done := 0, 0; done < b.N; {
						for posted < b.N && posted-done < 16 {
							if _, err := src.qp.PostSend(wr); err != nil {
								b.Fatal(err)
							}
							posted++
						}
						n, _ := src.cq.Poll(wcs)
						for _, wc := range wcs[:n] {
							if wc.Status != ib.WCSuccess {
								b.Fatal(wc.Status)
							}
						}
						done += n
					}
				})
			}
		}
	}
}
