package verbs_test

import (
	"bytes"
	"errors"
	"math"
	"net"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

const page = 4096

// buffer allocates registered pages.
func (n *node) buffer(size int, a ib.Access) *verbs.Buffer {
	n.t.Helper()
	b := ok(n.pd.AllocBuffer(size, a))(n.t)
	n.later(b.Close)
	return b
}

func (n *node) fastMR(pages int) *verbs.MR {
	n.t.Helper()
	m := ok(n.pd.AllocMR(pages))(n.t)
	n.later(m.Dereg)
	return m
}

func regMR(m *verbs.MR, key ib.RKey, a ib.Access) *verbs.SendWR {
	return &verbs.SendWR{Opcode: ib.WRRegMR, Flags: ib.SendSignaled, RKey: key, Bind: &verbs.BindInfo{MR: m, Access: a}}
}

func TestRegisterAtChosenAddress(t *testing.T) {
	r := newRig(t, 9000)
	qa, _ := r.pair(ib.RC)
	local := r.a.mem(16)
	b := []byte("0123456789abcdef")
	for _, c := range []struct {
		iova uint64
		a    ib.Access
		at   uint64
	}{
		{1 << 40, 0, 1 << 40}, {7, 0, 7}, {0, 0, 0}, {math.MaxUint64 - 15, 0, math.MaxUint64 - 15}, {1 << 40, ib.AccessZeroBased, 0},
	} {
		mr := ok(r.b.pd.RegMRIOVA(b, c.iova, allRights|c.a))(t)
		if mr.Addr() != c.at {
			t.Errorf("at %#x, want %#x", mr.Addr(), c.at)
		}
		r.ends("read", r.do(r.a, qa, access(local, ib.WRRDMARead, c.at+4, mr.RKey())), ib.WCSuccess)
		if string(local.Bytes()[:8]) != "456789ab" {
			t.Errorf("iova %#x: %q", c.iova, local.Bytes())
		}
		// The same memory by that address on this side.
		if s := mr.SGE(4, 8); s.Addr != c.at+4 {
			t.Errorf("element at %#x", s.Addr)
		}
		if err := mr.Dereg(); err != nil {
			t.Fatal(err)
		}
	}
}

// Every combination of flags of rereg_mr, then a failure of each: after it the
// old registration works.
func TestRereg(t *testing.T) {
	r := newRig(t, 9000)
	pd := ok(r.b.ctx.AllocPD())(t)
	local := r.a.mem(8)
	for flags := ib.ReregFlags(1); flags < 8; flags++ {
		qa, _ := r.pair(ib.RC)
		one, two := []byte("first..."), []byte("second..other")
		mr := ok(r.b.pd.RegMR(one, ib.AccessRemoteRead))(t)
		old := mr.RKey()
		for what, attr := range map[string]*verbs.ReregAttr{
			"memory": {Bytes: nil, PD: pd, Access: ib.AccessRemoteRead},
			"domain": {Bytes: two, PD: nil, Access: ib.AccessRemoteRead},
			"rights": {Bytes: two, PD: pd, Access: ib.AccessRemoteWrite},
			"device": {Bytes: two, PD: r.a.pd, Access: ib.AccessRemoteRead},
		} {
			bad := what == "memory" && flags&ib.ReregTranslation != 0 || (what == "domain" || what == "device") && flags&ib.ReregPD != 0 ||
				what == "rights" && flags&ib.ReregAccess != 0
			if !bad {
				continue
			}
			if err := mr.Rereg(flags, attr); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%v, bad %s: %v", flags, what, err)
			}
			if mr.RKey() != old || mr.PD() != r.b.pd || &mr.Bytes()[0] != &one[0] {
				t.Errorf("%v, bad %s: something changed", flags, what)
			}
			r.ends("read after a failure", r.do(r.a, qa, access(local, ib.WRRDMARead, mr.Addr(), old)), ib.WCSuccess)
		}
		if err := mr.Rereg(flags, &verbs.ReregAttr{Bytes: two, PD: pd, Access: ib.AccessLocalWrite | ib.AccessRemoteWrite}); err != nil {
			t.Fatal(flags, err)
		}
		buf, owner, op := one, r.b.pd, ib.WRRDMARead
		if flags&ib.ReregTranslation != 0 {
			buf = two
		}
		if flags&ib.ReregPD != 0 {
			owner = pd
		}
		if flags&ib.ReregAccess != 0 {
			op = ib.WRRDMAWrite
		}
		if &mr.Bytes()[0] != &buf[0] || mr.Length() != uint64(len(buf)) || mr.PD() != owner || mr.SGE(0, 1).LKey != mr.LKey() {
			t.Errorf("%v: %q, %d", flags, mr.Bytes(), mr.Length())
		}
		if (mr.RKey() != old) != (flags&(ib.ReregTranslation|ib.ReregPD) != 0) {
			t.Errorf("%v: key %#x, was %#x", flags, mr.RKey(), old)
		}
		copy(local.Bytes(), "WRITTEN!")
		want := ib.WCSuccess
		if owner == pd {
			want = ib.WCRemAccessErr // the queue pair stayed in the other domain
		}
		r.ends(flags.String(), r.do(r.a, qa, access(local, op, mr.Addr(), mr.RKey())), want)
		if want == ib.WCSuccess && !bytes.Equal(buf[:8], local.Bytes()) {
			t.Errorf("%v: %q, %q", flags, buf, local.Bytes())
		}
		// The domain that the region left may go once nothing else is in it, the other may not.
		if err := pd.Dealloc(); (owner == pd) != errors.Is(err, syscall.EBUSY) {
			t.Errorf("%v: %v", flags, err)
		}
		if err := errors.Join(mr.Dereg(), mr.Dereg(), pd.Dealloc()); err != nil {
			t.Error(err)
		}
		if err := mr.Rereg(flags, &verbs.ReregAttr{Bytes: two, PD: r.b.pd}); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
		pd = ok(r.b.ctx.AllocPD())(t)
	}
	if err := pd.Dealloc(); err != nil {
		t.Error(err)
	}
	null, fast := ok(r.b.pd.NullMR())(t), r.b.fastMR(1)
	r.b.later(null.Dereg)
	for _, m := range []*verbs.MR{null, fast} {
		if err := m.Rereg(ib.ReregAccess, &verbs.ReregAttr{}); !errors.Is(err, syscall.EINVAL) {
			t.Error(err)
		}
	}
	mr := r.b.memWith(make([]byte, 64), bindable)
	for _, f := range []ib.ReregFlags{0, 8} {
		if err := mr.Rereg(f, &verbs.ReregAttr{}); !errors.Is(err, syscall.EINVAL) {
			t.Error(f, err)
		}
	}
	_, qb := r.pair(ib.RC)
	w := r.b.mw(ib.MWType2)
	r.ends("bind", r.do(r.b, qb, bind(w, w.RKey(), mr, 0, 8, 0)), ib.WCSuccess)
	if err := mr.Rereg(ib.ReregAccess, &verbs.ReregAttr{}); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
}

// The life of a region for fast registration, of several pieces.
func TestFastRegistration(t *testing.T) {
	r := newRig(t, 9000)
	qa, qb := r.pair(ib.RC)
	b, local := r.b.buffer(8*page, ib.AccessLocalWrite), r.a.mem(4*page)
	for i := range b.Bytes() {
		b.Bytes()[i] = byte(i>>12*50 + i)
	}
	p, m := b.Bytes(), r.b.fastMR(4)
	list := [][]byte{p[page-10 : page], p[6*page : 7*page], p[2*page : 2*page+5]}
	n, rest, err := m.MapSG(list, 3, page)
	if n != 3 || rest != 0 || err != nil || m.Length() != 7+page+5 {
		t.Fatal(n, rest, err, m.Length())
	}
	all := bytes.Join([][]byte{list[0][3:], list[1], list[2]}, nil)
	read := func(key ib.RKey) *verbs.SendWR {
		wr := access(local, ib.WRRDMARead, m.Addr(), key)
		wr.SGList[0] = local.SGE(0, len(all))
		return wr
	}
	key := ib.IncRKey(m.RKey())
	r.ends("REG_MR", r.do(r.b, qb, regMR(m, key, ib.AccessLocalWrite|ib.AccessRemoteRead)), ib.WCSuccess)
	if m.RKey() != key || m.LKey() != ib.LKey(key) {
		t.Errorf("keys %#x, %#x", m.RKey(), m.LKey())
	}
	r.ends("read", r.do(r.a, qa, read(key)), ib.WCSuccess)
	if !bytes.Equal(local.Bytes()[:len(all)], all) {
		t.Error("other bytes")
	}
	// This side sends from it, across its pieces.
	if err := qa.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{local.SGE(0, 4*page)}}); err != nil {
		t.Fatal(err)
	}
	clear(local.Bytes())
	r.ends("send", r.do(r.b, qb, &verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{m.SGE(2, len(all)-2)}}), ib.WCSuccess)
	if wc := r.wcs(r.a.cq, 1)[0]; wc.Err() != nil || !bytes.Equal(local.Bytes()[:wc.ByteLen], all[2:]) {
		t.Errorf("%+v", wc)
	}
	// LOCAL_INV, other memory, REG_MR in one list, as kernel users do.
	next := p[4*page : 5*page]
	if n, _, err := m.MapSG([][]byte{next}, 0, page); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	wrs := []verbs.SendWR{*localInv(key), *regMR(m, ib.IncRKey(key), ib.AccessRemoteRead|ib.AccessLocalWrite)}
	if err := qb.PostSend(wrs); err != nil {
		t.Fatal(err)
	}
	for i, wc := range r.wcs(r.b.cq, 2) {
		if want := []ib.WCOpcode{ib.WCLocalInv, ib.WCRegMR}[i]; wc.Err() != nil || wc.Opcode != want {
			t.Errorf("%+v", wc)
		}
	}
	all = next
	r.ends("read of the other memory", r.do(r.a, qa, read(ib.IncRKey(key))), ib.WCSuccess)
	if !bytes.Equal(local.Bytes()[:len(all)], all) {
		t.Error("other bytes")
	}
	r.ends("read with the key before", r.do(r.a, qa, read(key)), ib.WCRemAccessErr)
	// A registration while it is valid, and of one without memory, are errors.
	for i, bad := range []*verbs.MR{m, r.b.fastMR(1)} {
		_, qb = r.pair(ib.RC)
		r.ends("bad REG_MR", r.do(r.b, qb, regMR(bad, bad.RKey(), ib.AccessLocalWrite)), ib.WCMWBindErr)
		if qb.State() != ib.QPStateErr {
			t.Errorf("%d: %v", i, qb.State())
		}
	}
	for _, n := range []int{0, -1, 513} {
		if _, err := r.b.pd.AllocMR(n); !errors.Is(err, syscall.EINVAL) {
			t.Error(n, err)
		}
	}
	if _, _, err := b.MR().MapSG([][]byte{p}, 0, page); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if _, _, err := m.MapSG(nil, 0, page); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

// A region that is not registered is no memory, for this side neither.
func TestFastRegionBeforeRegistration(t *testing.T) {
	r := newRig(t, 9000)
	_, qb := r.pair(ib.RC)
	m, b := r.b.fastMR(4), r.b.buffer(page, 0)
	if _, _, err := m.MapSG([][]byte{b.Bytes()}, 0, page); err != nil {
		t.Fatal(err)
	}
	r.ends("send", r.do(r.b, qb, &verbs.SendWR{Opcode: ib.WRSend, SGList: []verbs.SGE{m.SGE(0, 8)}, Flags: ib.SendSignaled}), ib.WCLocProtErr)
}

func TestLocalDMALKey(t *testing.T) {
	r := newRig(t, 9000)
	qa, qb := r.pair(ib.RC)
	b := r.a.buffer(3*page, 0)
	key := ok(r.a.pd.LocalDMALKey())(t)
	if again := ok(r.a.pd.LocalDMALKey())(t); again != key || key == 0 || ib.LKey(b.MR().RKey()) == key {
		t.Errorf("%#x, %#x", key, again)
	}
	if b.Addr()%page != 0 || len(b.Bytes()) != 3*page || !bytes.Equal(b.Bytes(), make([]byte, 3*page)) {
		t.Errorf("%d bytes at %#x", len(b.Bytes()), b.Addr())
	}
	into := r.b.mem(64)
	send := func(addr uint64) *verbs.SendWR {
		if err := qb.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{into.SGE(0, 64)}}); err != nil {
			t.Fatal(err)
		}
		return &verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{{Addr: addr, Length: 8, LKey: key}}}
	}
	copy(b.Bytes()[2*page-4:], "any byte")
	r.ends("send", r.do(r.a, qa, send(b.Addr()+2*page-4)), ib.WCSuccess)
	if wc := r.wcs(r.b.cq, 1)[0]; wc.Err() != nil || string(into.Bytes()[:8]) != "any byte" {
		t.Errorf("%+v, %q", wc, into.Bytes())
	}
	// A receive writes there though the buffer's own region does not have the right.
	if err := qa.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{{Addr: b.Addr(), Length: 64, LKey: key}}}); err != nil {
		t.Fatal(err)
	}
	r.ends("receive", r.do(r.b, qb, &verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{into.SGE(0, 8)}}), ib.WCSuccess)
	if wc := r.wcs(r.a.cq, 1)[0]; wc.Err() != nil || string(b.Bytes()[:8]) != "any byte" {
		t.Errorf("%+v", wc)
	}
	// Peers cannot use it, nor does it reach other memory, nor a buffer that was closed.
	_, peer := r.pair(ib.RC)
	r.ends("peer", r.do(r.b, peer, access(into, ib.WRRDMARead, b.Addr(), ib.RKey(key))), ib.WCRemAccessErr)
	heap := r.a.mem(64)
	r.ends("heap", r.do(r.a, qa, send(heap.Addr())), ib.WCLocProtErr)
	gone := ok(r.a.pd.AllocBuffer(page, 0))(t)
	addr := gone.Addr()
	if err := errors.Join(gone.Close(), gone.Close()); err != nil {
		t.Fatal(err)
	}
	qa, qb = r.pair(ib.RC)
	r.ends("closed", r.do(r.a, qa, send(addr)), ib.WCLocProtErr)
}

func TestBuffers(t *testing.T) {
	r := newRig(t, 9000)
	_, qb := r.pair(ib.RC)
	for _, n := range []int{1, page - 1, page, page + 1, 1 << 20, 2 << 20, 5<<20 + 3} {
		b := ok(r.b.pd.AllocBuffer(n, bindable))(t)
		if len(b.Bytes()) != n || cap(b.Bytes()) != n || b.Addr()%page != 0 || b.MR().Length() != uint64(n) || &b.MR().Bytes()[0] != &b.Bytes()[0] {
			t.Errorf("%d bytes: %d at %#x", n, len(b.Bytes()), b.Addr())
		}
		t.Logf("%d bytes: huge %v", n, b.Huge())
		b.Bytes()[0], b.Bytes()[n-1] = 1, 2
		if s := b.SGE(n-1, 1); s.Addr != b.Addr()+uint64(n)-1 {
			t.Errorf("%+v", s)
		}
		w := ok(r.b.pd.AllocMW(ib.MWType2))(t)
		r.ends("bind", r.do(r.b, qb, bind(w, w.RKey(), b.MR(), 0, 1, ib.AccessRemoteRead)), ib.WCSuccess)
		if err := b.Close(); !errors.Is(err, syscall.EBUSY) || b.Bytes()[n-1] != 2 {
			t.Errorf("close under a window: %v", err)
		}
		if err := errors.Join(w.Dealloc(), b.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	}
	for _, n := range []int{0, -1} {
		if _, err := r.b.pd.AllocBuffer(n, 0); !errors.Is(err, syscall.EINVAL) {
			t.Error(n, err)
		}
	}
	if _, err := r.b.pd.AllocBuffer(page, ib.AccessRemoteWrite); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if _, err := r.b.pd.AllocBuffer(math.MaxInt, 0); !errors.Is(err, syscall.ENOMEM) && !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

func TestDeviceMemory(t *testing.T) {
	r := newRig(t, 9000)
	qa, _ := r.pair(ib.RC)
	local := r.a.mem(8)
	attr := ok(r.b.ctx.QueryDevice())(t)
	dm := ok(r.b.ctx.AllocDM(&verbs.DMAttr{Length: 1000, LogAlign: 12}))(t)
	if err := dm.CopyTo(992, []byte("the last")); err != nil {
		t.Fatal(err)
	}
	into := make([]byte, 4)
	if err := dm.CopyFrom(into, 996); err != nil || string(into) != "last" {
		t.Fatal(err, into)
	}
	for _, c := range [][2]uint64{{993, 8}, {1000, 1}, {math.MaxUint64, 2}, {0, 1001}} {
		if err := dm.CopyTo(c[0], make([]byte, c[1])); !errors.Is(err, syscall.EINVAL) {
			t.Error(c, err)
		}
		if err := dm.CopyFrom(make([]byte, c[1]), c[0]); !errors.Is(err, syscall.EINVAL) {
			t.Error(c, err)
		}
		if _, err := r.b.pd.RegDMMR(dm, c[0], c[1], ib.AccessZeroBased); !errors.Is(err, syscall.EINVAL) {
			t.Error(c, err)
		}
	}
	if _, err := r.b.pd.RegDMMR(dm, 0, 8, 0); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	mr := ok(r.b.pd.RegDMMR(dm, 992, 8, ib.AccessZeroBased|allRights))(t)
	r.ends("read", r.do(r.a, qa, access(local, ib.WRRDMARead, 0, mr.RKey())), ib.WCSuccess)
	if string(local.Bytes()) != "the last" {
		t.Errorf("%q", local.Bytes())
	}
	copy(local.Bytes(), "written!")
	r.ends("write", r.do(r.a, qa, access(local, ib.WRRDMAWrite, 0, mr.RKey())), ib.WCSuccess)
	if err := dm.CopyFrom(into, 992); err != nil || string(into) != "writ" {
		t.Error(err, into)
	}
	r.ends("fetch and add", r.do(r.a, qa, access(local, ib.WRAtomicFetchAndAdd, 0, mr.RKey())), ib.WCSuccess)
	if err := dm.Free(); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	for _, f := range []ib.ReregFlags{ib.ReregTranslation, ib.ReregAccess} {
		if err := mr.Rereg(f, &verbs.ReregAttr{Bytes: make([]byte, 8)}); !errors.Is(err, syscall.EINVAL) {
			t.Error(f, err)
		}
	}
	if _, err := r.b.ctx.AllocDM(&verbs.DMAttr{Length: attr.MaxDMSize - 999}); !errors.Is(err, syscall.ENOMEM) {
		t.Error(err)
	}
	if err := errors.Join(mr.Dereg(), dm.Free(), dm.Free()); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"copy to": dm.CopyTo(0, into), "copy from": dm.CopyFrom(into, 0),
		"register": func() error { _, err := r.b.pd.RegDMMR(dm, 0, 8, ib.AccessZeroBased); return err }(),
		"length 0": func() error { _, err := r.b.ctx.AllocDM(&verbs.DMAttr{}); return err }(),
		"alignment": func() error {
			_, err := r.b.ctx.AllocDM(&verbs.DMAttr{Length: 1, LogAlign: 60})
			return err
		}(),
	} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
	}
	all := ok(r.b.ctx.AllocDM(&verbs.DMAttr{Length: attr.MaxDMSize}))(t)
	if err := all.Free(); err != nil {
		t.Error(err)
	}
}

// A parent domain is another handle of the same protection.
func TestParentDomain(t *testing.T) {
	r := newRig(t, 9000)
	td := ok(r.b.ctx.AllocTD())(t)
	parent := ok(r.b.ctx.AllocParentDomain(&verbs.ParentDomainAttr{PD: r.b.pd, TD: td}))(t)
	mr := ok(parent.RegMR(make([]byte, 8), allRights))(t)
	if mr.PD() != parent {
		t.Error("the region is not in the domain that it was made in")
	}
	qa, _ := r.pair(ib.RC)
	r.ends("read", r.do(r.a, qa, access(r.a.mem(8), ib.WRRDMARead, mr.Addr(), mr.RKey())), ib.WCSuccess)
	for what, f := range map[string]func() error{"parent domain": parent.Dealloc, "domain": r.b.pd.Dealloc, "thread domain": td.Dealloc} {
		if err := f(); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := errors.Join(mr.Dereg(), parent.Dealloc(), parent.Dealloc(), td.Dealloc(), td.Dealloc()); err != nil {
		t.Error(err)
	}
	for what, a := range map[string]*verbs.ParentDomainAttr{
		"nil": nil, "nil domain": {}, "domain of another device": {PD: r.a.pd}, "dead thread domain": {PD: r.b.pd, TD: td},
	} {
		if _, err := r.b.ctx.AllocParentDomain(a); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := parent.RegMR(make([]byte, 8), 0); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

func TestMemoryAbilities(t *testing.T) {
	r := newRig(t, 9000)
	a := ok(r.a.ctx.QueryDevice())(t)
	const want = ib.DeviceCapMemWindow | ib.DeviceCapMemWindowType2B | ib.DeviceCapMemMgtExtensions | ib.DeviceCapLocalDMALKey
	if a.MaxMW == 0 || a.MaxFastRegPageListLen != 512 || a.MaxDMSize == 0 || a.DeviceCapFlags&(want|ib.DeviceCapMemWindowType2A) != want {
		t.Errorf("%+v", a)
	}
	if err := r.a.pd.AdviseMR(ib.AdvisePrefetch, 0, nil); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Error(err)
	}
}
