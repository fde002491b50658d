package rdmacm_test

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// What rdma_reg_write(3) promises, statement by statement: CONFORMANCE.md has them.

// tryAll does each kind of remote access to a region of b's, and a receive into it,
// with a connection each, and tells the completions.
func tryAll(t *testing.T, reg func(*rdmacm.ID, []byte) (*verbs.MR, error)) (got map[string]ib.WCStatus) {
	t.Helper()
	got = map[string]ib.WCStatus{}
	for what, post := range map[string]func(e *vend, l, m *verbs.MR) error{
		"write": func(e *vend, l, m *verbs.MR) error {
			return e.id.PostWrite(1, l.Bytes(), l, ib.SendSignaled, m.Addr(), m.RKey())
		},
		"read": func(e *vend, l, m *verbs.MR) error {
			return e.id.PostRead(1, l.Bytes(), l, ib.SendSignaled, m.Addr(), m.RKey())
		},
		"atomic": func(e *vend, l, m *verbs.MR) error {
			return e.id.QP().PostSendOne(&verbs.SendWR{
				WRID: 1, Opcode: ib.WRAtomicFetchAndAdd, Flags: ib.SendSignaled, SGList: []verbs.SGE{l.SGE(0, 8)}, RemoteAddr: m.Addr(), RKey: m.RKey(), CompareAdd: 1,
			})
		},
		"receive": func(e *vend, l, m *verbs.MR) error {
			return errors.Join(e.r.b.id.PostRecv(1, m.Bytes(), m), e.id.PostSend(1, l.Bytes(), l, ib.SendSignaled))
		},
		"send from": func(e *vend, l, m *verbs.MR) error {
			// The other way round, so that the status is the region's.
			return errors.Join(e.id.PostRecv(1, l.Bytes(), l), e.r.b.id.PostSend(1, m.Bytes(), m, ib.SendSignaled))
		},
	} {
		r := newVRig(t, true, false)
		r.connect()
		l := r.a.msgs(8)
		fill(l.Bytes(), 1)
		m := r.b.mr(func(b []byte) (*verbs.MR, error) { return reg(r.b.id, b) }, make([]byte, 8))
		if err := post(r.a, l, m); err != nil {
			t.Fatal(what, err)
		}
		e := r.a
		if what == "send from" {
			e = r.b
		}
		got[what] = e.sent().Status
		if unchanged := bytes.Equal(m.Bytes(), make([]byte, 8)); got[what] != ib.WCSuccess && !unchanged {
			t.Errorf("%s changed memory that it may not access", what)
		}
	}
	return got
}

func TestR1_Rights(t *testing.T) {
	const yes, no = ib.WCSuccess, ib.WCRemAccessErr
	for _, c := range []struct {
		name                string
		reg                 func(*rdmacm.ID, []byte) (*verbs.MR, error)
		write, read, atomic ib.WCStatus
	}{
		{"RegWrite", (*rdmacm.ID).RegWrite, yes, no, no},
		{"RegRead", (*rdmacm.ID).RegRead, no, yes, no},
		{"RegMsgs", (*rdmacm.ID).RegMsgs, no, no, no},
	} {
		got := tryAll(t, c.reg)
		want := map[string]ib.WCStatus{"write": c.write, "read": c.read, "atomic": c.atomic, "receive": yes, "send from": yes}
		for what, s := range want {
			if got[what] != s {
				t.Errorf("%s, %s: %v, want %v", c.name, what, got[what], s)
			}
		}
	}
}

func TestR2_DomainOfTheID(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		for _, mr := range []*verbs.MR{r.b.write(8), r.b.read(8), r.b.msgs(8)} {
			if mr.PD() != r.b.id.PD() || mr.PD() != r.b.id.QP().PD() {
				t.Error("another domain")
			}
		}
		// Memory of another domain is not the ID's.
		pd := vok(r.b.ctx.AllocPD())(t)
		r.b.later(pd.Dealloc)
		foreign := vok(pd.RegMR(make([]byte, 8), ib.AccessLocalWrite|ib.AccessRemoteWrite))(t)
		r.b.later(foreign.Dereg)
		if err := r.a.id.PostWrite(1, []byte("12345678"), nil, ib.SendInline, foreign.Addr(), foreign.RKey()); err != nil {
			t.Fatal(err)
		}
		r.a.bad(r.a.sent(), ib.WCRemAccessErr, 1)
		if !bytes.Equal(foreign.Bytes(), make([]byte, 8)) {
			t.Error("written")
		}
	})
}

func TestR3_TargetOfWrites(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		src, dst := r.a.msgs(100), r.b.write(100)
		fill(src.Bytes(), 1)
		r.meet()
		if err := errors.Join(
			r.a.id.PostWrite(1, src.Bytes()[:10], src, ib.SendSignaled, dst.Addr(), dst.RKey()),
			r.a.id.PostWriteV(2, []verbs.SGE{src.SGE(90, 10), src.SGE(50, 3)}, ib.SendSignaled, dst.Addr()+10, dst.RKey()),
			r.a.id.PostWriteV(3, []verbs.SGE{src.SGE(0, 2)}, ib.SendSignaled|ib.SendInline, dst.Addr()+98, dst.RKey()),
			r.a.id.QP().PostSendOne(&verbs.SendWR{
				WRID: 4, Opcode: ib.WRRDMAWriteWithImm, Flags: ib.SendSignaled, SGList: []verbs.SGE{src.SGE(30, 4)}, RemoteAddr: dst.Addr() + 60, RKey: dst.RKey(), ImmData: 5,
			}),
			r.b.id.PostRecv(5, nil, nil),
		); err != nil {
			t.Fatal(err)
		}
		for i := range uint64(4) {
			r.a.good(r.a.sent(), i+1)
		}
		if wc := r.b.received(); wc.WRID != 5 || wc.ImmData != 5 {
			t.Errorf("%+v", wc)
		}
		s, want := src.Bytes(), make([]byte, 100)
		copy(want, s[:10])
		copy(want[10:], s[90:])
		copy(want[20:], s[50:53])
		copy(want[60:], s[30:34])
		copy(want[98:], s[:2])
		if !bytes.Equal(dst.Bytes(), want) {
			t.Errorf("% x\nwant\n% x", dst.Bytes(), want)
		}
	})
}

func TestR4_RegionOrErrno(t *testing.T) {
	r := newVRig(t, true, false)
	r.connect()
	unbound := r.a.newID(rdmacm.PSTCP)
	for what, reg := range map[string]func(id *rdmacm.ID, b []byte) (*verbs.MR, error){
		"reg_write": (*rdmacm.ID).RegWrite, "reg_read": (*rdmacm.ID).RegRead, "reg_msgs": (*rdmacm.ID).RegMsgs,
	} {
		for _, c := range []struct {
			id *rdmacm.ID
			b  []byte
		}{{unbound, make([]byte, 8)}, {r.a.id, nil}, {r.a.id, []byte{}}} {
			mr, err := reg(c.id, c.b)
			var oe *rdmacm.OpError
			if mr != nil || !errors.Is(err, syscall.EINVAL) || !errors.As(err, &oe) || oe.Op != what {
				t.Errorf("%s: %v, %v", what, mr, err)
			}
		}
	}
}

func TestR5_StartLengthAndEnd(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		memory := make([]byte, 300)
		mr := r.b.mr(r.b.id.RegWrite, memory[100:200])
		if mr.Length() != 100 || &mr.Bytes()[0] != &memory[100] {
			t.Errorf("%d bytes", mr.Length())
		}
		src := r.a.msgs(100)
		fill(src.Bytes(), 1)
		r.meet()
		if err := r.a.id.PostWrite(1, src.Bytes(), src, ib.SendSignaled, mr.Addr(), mr.RKey()); err != nil {
			t.Fatal(err)
		}
		r.a.good(r.a.sent(), 1)
		if !bytes.Equal(memory[100:200], src.Bytes()) || !bytes.Equal(memory[:100], make([]byte, 100)) || !bytes.Equal(memory[200:], make([]byte, 100)) {
			t.Error("other bytes")
		}
		// The key is dead when DeregMR has returned.
		if err := rdmacm.DeregMR(mr); err != nil {
			t.Fatal(err)
		}
		clear(memory)
		r.meet()
		if err := r.a.id.PostWrite(2, src.Bytes(), src, ib.SendSignaled, mr.Addr(), mr.RKey()); err != nil {
			t.Fatal(err)
		}
		r.a.bad(r.a.sent(), ib.WCRemAccessErr, 2)
		if !bytes.Equal(memory, make([]byte, 300)) {
			t.Error("written after the end of the registration")
		}
	})
}

func TestR5_Dereg(t *testing.T) {
	r := newVRig(t, true, false)
	r.connect()
	mr := vok(r.a.id.RegWrite(make([]byte, 8)))(t)
	for range 2 { // again it does nothing
		if err := rdmacm.DeregMR(mr); err != nil {
			t.Error(err)
		}
	}
	var oe *rdmacm.OpError
	if err := rdmacm.DeregMR(nil); !errors.Is(err, syscall.EINVAL) || !errors.As(err, &oe) || oe.Op != "dereg_mr" {
		t.Error(err)
	}
	// A window that is bound keeps it.
	pd := r.a.id.PD()
	region := vok(pd.RegMR(make([]byte, 64), ib.AccessLocalWrite|ib.AccessMWBind))(t)
	mw := vok(pd.AllocMW(ib.MWType1))(t)
	bind := verbs.MWBind{WRID: 1, Flags: ib.SendSignaled, Info: verbs.BindInfo{MR: region, Addr: region.Addr(), Length: 64, Access: ib.AccessRemoteRead}}
	if err := r.a.id.QP().BindMW(mw, &bind); err != nil {
		t.Fatal(err)
	}
	r.a.good(r.a.sent(), 1)
	if err := rdmacm.DeregMR(region); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	if err := errors.Join(mw.Dealloc(), rdmacm.DeregMR(region)); err != nil {
		t.Error(err)
	}
}
