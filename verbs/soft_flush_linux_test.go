package verbs_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// fileMem maps a new file of n bytes and registers it.
func (n *node) fileMem(size int) (*verbs.MR, []byte, *os.File) {
	n.t.Helper()
	f := ok(os.Create(filepath.Join(n.t.TempDir(), "memory")))(n.t)
	n.t.Cleanup(func() { f.Close() })
	if err := f.Truncate(int64(size)); err != nil {
		n.t.Fatal(err)
	}
	b := ok(syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED))(n.t)
	n.later(func() error { return syscall.Munmap(b) })
	return n.memWith(b, allRights|flushRights), b, f
}

// A WRITE with a FLUSH behind it is in the file when the FLUSH is complete.
func TestFlushToFile(t *testing.T) {
	r := newExRig(t, nil)
	mr, b, f := r.b.fileMem(3 * 4096)
	if a := ok(r.b.ctx.QueryDevice())(t); a.DeviceCapFlags&ib.DeviceCapFlushPersistent == 0 {
		t.Error("persistent flushes are not told of")
	}
	x := r.x
	for i, level := range []ib.FlushLevel{ib.FlushRange, ib.FlushMR} {
		text := []byte{'o', 'n', 'e', byte('0' + i)}
		x.Start()
		x.WRFlags = 0
		x.RDMAWrite(mr.RKey(), mr.Addr()+5000)
		x.SetInlineData(text)
		x.WRID, x.WRFlags = 7, ib.SendSignaled
		x.Flush(mr.RKey(), mr.Addr()+5000, 4, ib.FlushGlobal|ib.FlushPersistent, level)
		if err := x.Complete(); err != nil {
			t.Fatal(err)
		}
		if wc := r.wcs(r.a.cq, 1)[0]; wc.Status != ib.WCSuccess || wc.Opcode != ib.WCFlush || wc.WRID != 7 {
			t.Fatalf("%+v", wc)
		}
		got := make([]byte, 4)
		if _, err := f.ReadAt(got, 5000); err != nil || !bytes.Equal(got, text) || !bytes.Equal(b[5000:5004], text) {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// Over XRC both are as over RC; the receive queue in the request decides whose
// memory it is.
func TestExtendedOverXRC(t *testing.T) {
	r := newRig(t, 9000)
	xrcd := r.b.xrcd(verbs.XRCDInitAttr{})
	srq := r.b.xsrq(xrcd, r.b.pd, r.b.newCQ())
	ini, tgt := r.xrc(xrcd)
	attr := ib.QPAttr{QPState: ib.QPStateRTS, QPAccessFlags: ib.AccessRemote, SQPSN: 1, Timeout: 8}
	if err := tgt.Modify(&attr, ib.QPAttrState|ib.QPAttrSQPSN|ib.QPAttrTimeout|ib.QPAttrAccessFlags); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4096)
	dst := r.b.memWith(b, allRights|flushRights)
	x := ok(ini.Ex(ib.WRFlush, ib.WRAtomicWrite, ib.WRRDMAWrite))(t)
	for _, missing := range []bool{true, false} {
		x.Start()
		x.WRFlags = ib.SendSignaled
		x.RDMAWrite(dst.RKey(), dst.Addr())
		x.SetXRCSRQN(srq.Num())
		x.SetInlineData([]byte("abc"))
		x.AtomicWrite(dst.RKey(), dst.Addr()+8, [8]byte{1, 2, 3, 4, 5, 6, 7, 8})
		if !missing {
			x.SetXRCSRQN(srq.Num())
		}
		x.Flush(dst.RKey(), dst.Addr(), 16, ib.FlushPersistent, ib.FlushMR)
		x.SetXRCSRQN(srq.Num())
		if err := x.Complete(); (err != nil) != missing {
			t.Fatalf("missing %v: %v", missing, err)
		}
	}
	for i, wc := range r.wcs(r.a.cq, 3) {
		if wc.Status != ib.WCSuccess || wc.Opcode != []ib.WCOpcode{ib.WCRDMAWrite, ib.WCAtomicWrite, ib.WCFlush}[i] {
			t.Errorf("%+v", wc)
		}
	}
	if string(b[:3]) != "abc" || binary.BigEndian.Uint64(b[8:]) != 0x0102030405060708 {
		t.Errorf("%v", b[:16])
	}
	r.quiet(r.a.cq)
}

// A window gives flush rights for its range; the whole of its key is that range.
func TestFlushThroughWindow(t *testing.T) {
	r := newExRig(t, nil)
	b := make([]byte, 4096)
	mr := r.b.memWith(b, allRights|ib.AccessMWBind|flushRights)
	mw := ok(r.b.pd.AllocMW(ib.MWType2))(t)
	r.b.later(mw.Dealloc)
	bind := verbs.BindInfo{MW: mw, MR: mr, Addr: mr.Addr() + 100, Length: 50, Access: ib.AccessRemoteWrite | ib.AccessFlushGlobal}
	key := mw.RKey() ^ 1
	xb := ok(r.qb.Ex(ib.WRBindMW, ib.WRLocalInv))(t)
	xb.Start()
	xb.WRFlags = ib.SendSignaled
	xb.BindMW(key, &bind)
	if err := xb.Complete(); err != nil {
		t.Fatal(err)
	}
	if wc := r.wcs(r.b.cq, 1)[0]; wc.Status != ib.WCSuccess || wc.Opcode != ib.WCBindMW {
		t.Fatalf("%+v", wc)
	}
	flush := func(addr uint64, n uint32, typ ib.FlushType, level ib.FlushLevel) {
		t.Helper()
		r.x.Start()
		r.x.WRFlags = ib.SendSignaled
		r.x.Flush(key, addr, n, typ, level)
		if err := r.x.Complete(); err != nil {
			t.Fatal(err)
		}
	}
	flush(mr.Addr()+100, 50, ib.FlushGlobal, ib.FlushRange)
	flush(0, 1, ib.FlushGlobal, ib.FlushMR)
	if got := statuses(r.wcs(r.a.cq, 2)); got[0] != ib.WCSuccess || got[1] != ib.WCSuccess {
		t.Fatal(got)
	}
	flush(mr.Addr()+100, 51, ib.FlushGlobal, ib.FlushRange)
	if got := statuses(r.wcs(r.a.cq, 1)); got[0] != ib.WCRemAccessErr {
		t.Fatal(got)
	}
}
