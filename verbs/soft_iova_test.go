package verbs_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Memory that is given as an address is registered under an address of choice, as
// a slice is.
func TestRegisterPointerAtChosenAddress(t *testing.T) {
	r := newRig(t, 9000)
	qa, _ := r.pair(ib.RC)
	const iova = 0x7F00_0000_0000
	src, dst := r.a.mem(64), r.b.mem(64)
	mr := ok(r.b.pd.RegMRPointerIOVA(uintptr(dst.Addr())+16, 32, iova, allRights))(t)
	r.b.later(mr.Dereg)
	if mr.Addr() != iova || mr.Length() != 32 || mr.LKey() == dst.LKey() {
		t.Errorf("address 0x%x, %d bytes, key 0x%x", mr.Addr(), mr.Length(), uint32(mr.LKey()))
	}
	copy(src.Bytes(), "to an address of choice")
	write := func(addr uint64, n int) ib.WCStatus {
		r.signal(qa, verbs.SendWR{Opcode: ib.WRRDMAWrite, SGList: []verbs.SGE{src.SGE(0, n)}, RemoteAddr: addr, RKey: mr.RKey()})
		return r.wcs(r.a.cq, 1)[0].Status
	}
	if st := write(iova+4, 23); st != ib.WCSuccess || string(dst.Bytes()[20:43]) != "to an address of choice" {
		t.Errorf("%v, memory %q", st, dst.Bytes())
	}
	if st := write(iova+16, 17); st != ib.WCRemAccessErr {
		t.Errorf("behind the end: %v", st)
	}
	if _, err := r.b.pd.RegMRPointerIOVA(uintptr(dst.Addr()), 64, 1<<64-32, allRights); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("beyond the end of all addresses: %v", err)
	}
}
