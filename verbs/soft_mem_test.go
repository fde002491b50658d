package verbs_test

import (
	"errors"
	"math"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

func TestCase33_KeysAfterManyRegistrations(t *testing.T) {
	r := newRig(t, 9000)
	qa, _ := r.pair(ib.RC)
	into := r.a.mem(8)
	b := []byte("contents")
	cycles := 200_000
	if testing.Short() || raceEnabled {
		cycles = 20_000
	}
	recent := map[ib.RKey]bool{}
	var order []ib.RKey
	var first ib.RKey
	for i := range cycles {
		mr, err := r.b.pd.RegMR(b, ib.AccessRemoteRead)
		if err != nil {
			t.Fatal(i, err)
		}
		k := mr.RKey()
		if i == 0 {
			first = k
		}
		if recent[k] {
			t.Fatalf("registration %d: key %#x was in use among the last 1000", i, k)
		}
		recent[k] = true
		if order = append(order, k); len(order) > 1000 {
			delete(recent, order[0])
			order = order[1:]
		}
		if err := mr.Dereg(); err != nil {
			t.Fatal(i, err)
		}
	}
	mr := r.b.memWith(b, ib.AccessRemoteRead)
	read := verbs.SendWR{Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGList: []verbs.SGE{into.SGE(0, 8)}, RemoteAddr: mr.Addr(), RKey: mr.RKey()}
	if err := qa.PostSendOne(&read); err != nil {
		t.Fatal(err)
	}
	if wc := r.wcs(r.a.cq, 1)[0]; wc.Err() != nil || string(into.Bytes()) != "contents" {
		t.Errorf("%v, %q", wc.Err(), into.Bytes())
	}
	// Keys of regions that are gone are refused.
	for _, k := range []ib.RKey{first, order[len(order)-1]} {
		qa, _ := r.pair(ib.RC)
		read.RKey = k
		if err := qa.PostSendOne(&read); err != nil {
			t.Fatal(err)
		}
		if wc := r.wcs(r.a.cq, 1)[0]; wc.Status != ib.WCRemAccessErr {
			t.Errorf("key %#x of a dead region: %v", k, wc.Status)
		}
	}
}

// Each right that an access needs must be there: no other one will do instead.
func TestCase35_AllAccessMasks(t *testing.T) {
	r := newRig(t, 9000)
	local := r.a.mem(8)
	for mask := range ib.Access(16) {
		mr, err := r.b.pd.RegMR(make([]byte, 8), mask)
		if mask&(ib.AccessRemoteWrite|ib.AccessRemoteAtomic) != 0 && mask&ib.AccessLocalWrite == 0 {
			if !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%v without local write: %v", mask, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(mask, err)
		}
		for _, c := range []struct {
			op   ib.WROpcode
			need ib.Access
		}{
			{ib.WRRDMAWrite, ib.AccessRemoteWrite},
			{ib.WRRDMARead, ib.AccessRemoteRead},
			{ib.WRAtomicFetchAndAdd, ib.AccessRemoteAtomic},
			{ib.WRAtomicCmpAndSwp, ib.AccessRemoteAtomic},
		} {
			qa, qb := r.pair(ib.RC)
			// An address that is a multiple of 8, for atomics: Go aligns 8-byte slices so.
			if err := qa.PostSendOne(&verbs.SendWR{
				Opcode: c.op, Flags: ib.SendSignaled, SGList: []verbs.SGE{local.SGE(0, 8)}, RemoteAddr: mr.Addr(), RKey: mr.RKey(),
			}); err != nil {
				t.Fatal(err)
			}
			want := ib.WCSuccess
			if mask&c.need == 0 {
				want = ib.WCRemAccessErr
			}
			if wc := r.wcs(r.a.cq, 1)[0]; wc.Status != want {
				t.Errorf("%v on a region with %v: %v, want %v", c.op, mask, wc.Status, want)
			}
			if err := errors.Join(qa.Destroy(), qb.Destroy()); err != nil {
				t.Fatal(err)
			}
		}
		// A receive into it needs local write.
		qa, qb := r.pair(ib.RC)
		if err := errors.Join(
			qb.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(0, 8)}}),
			qa.PostSendOne(&verbs.SendWR{Opcode: ib.WRSend, SGList: []verbs.SGE{local.SGE(0, 8)}}),
		); err != nil {
			t.Fatal(err)
		}
		want := ib.WCSuccess
		if mask&ib.AccessLocalWrite == 0 {
			want = ib.WCLocProtErr
		}
		if wc := r.wcs(r.b.cq, 1)[0]; wc.Status != want {
			t.Errorf("receive into a region with %v: %v, want %v", mask, wc.Status, want)
		}
		if err := errors.Join(qa.Destroy(), qb.Destroy(), mr.Dereg()); err != nil {
			t.Fatal(err)
		}
		r.a.drop()
		r.b.drop()
	}
}

func TestCase44_OptionalAccessFlags(t *testing.T) {
	r := newRig(t, 9000)
	b := make([]byte, 8)
	for _, a := range []ib.Access{ib.AccessRelaxedOrdering, 1 << 29, ib.AccessOptional, ib.AccessRelaxedOrdering | allRights} {
		mr, err := r.a.pd.RegMR(b, a)
		if err != nil {
			t.Errorf("%v: %v", a, err)
			continue
		}
		if err := mr.Dereg(); err != nil {
			t.Error(err)
		}
	}
	for _, a := range []ib.Access{1 << 19, 1 << 12, 1 << 31} {
		if _, err := r.a.pd.RegMR(b, a); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: %v", a, err)
		}
	}
}

func TestCase45_ImplicitOnDemandPaging(t *testing.T) {
	r := newRig(t, 9000)
	if _, err := r.a.pd.RegMRPointer(0, math.MaxUint64, ib.AccessOnDemand|ib.AccessLocalWrite); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Error(err)
	}
	if ok(r.a.ctx.QueryDevice())(t).ODP {
		t.Error("the device says it can")
	}
}

func TestRegistrationErrors(t *testing.T) {
	r := newRig(t, 9000)
	for what, f := range map[string]func() (*verbs.MR, error){
		"empty":      func() (*verbs.MR, error) { return r.a.pd.RegMR(nil, 0) },
		"wraps":      func() (*verbs.MR, error) { return r.a.pd.RegMRIOVA(make([]byte, 16), math.MaxUint64-7, 0) },
		"first page": func() (*verbs.MR, error) { return r.a.pd.RegMRPointer(8, 8, 0) },
		"no bytes":   func() (*verbs.MR, error) { return r.a.pd.RegMRPointer(1<<20, 0, 0) },
	} {
		if _, err := f(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
