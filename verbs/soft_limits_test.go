package verbs_test

import (
	"bytes"
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/provider/soft"
	"github.com/verbena-rdma/verbena/verbs"
)

// limitedRig is a rig whose devices have limits of their own.
func limitedRig(t testing.TB, l soft.Limits) *rig {
	t.Helper()
	r := &rig{t: t, net: simnet.New(1), limits: l}
	r.a = r.node("a", 9000, "192.0.2.1")
	r.b = r.node("b", 9000, "192.0.2.2")
	return r
}

// A device says what it was made to be, and keeps to it.
func TestOtherDevices(t *testing.T) {
	r := limitedRig(t, soft.Limits{MaxSGERd: 1, MaxSGLRd: 3, MaxFastRegPages: 8, MaxPIFastRegPages: 2, IWARP: true, ReadWithInv: true, ContigMapping: true})
	attr := ok(r.a.ctx.QueryDevice())(t)
	if attr.MaxSGERd != 1 || attr.MaxSGLRd != 3 || attr.MaxFastRegPageListLen != 8 || attr.MaxPIFastRegPageListLen != 2 || !attr.ReadWithInv {
		t.Errorf("%+v", attr)
	}
	if i := r.a.soft.Info(); i.Transport != "iWARP" || i.NodeType != ib.NodeRNIC {
		t.Errorf("%+v", i)
	}
	if _, err := r.a.pd.AllocMR(9); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	qa, _ := r.pair(ib.RC)
	local, remote := r.a.mem(64), r.b.mem(64)
	read := access(local, ib.WRRDMARead, remote.Addr(), remote.RKey())
	r.ends("one element", r.do(r.a, qa, read), ib.WCSuccess)
	read.SGList = []verbs.SGE{local.SGE(0, 8), local.SGE(8, 8)}
	refusal := qa.PostSendOne(read)
	if !errors.Is(refusal, syscall.EINVAL) {
		t.Error(refusal)
	}
	read.Opcode = ib.WRReadWithInv
	if err := qa.PostSendOne(read); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	read.Opcode = ib.WRRDMAWrite
	r.ends("two elements of a WRITE", r.do(r.a, qa, read), ib.WCSuccess)

	// READ_WITH_INV through the builder: the bytes are there and the key is dead.
	copy(remote.Bytes(), "of the peer")
	buf := r.a.buffer(2*page, ib.AccessLocalWrite)
	fast := r.a.fastMR(2)
	if _, _, err := fast.MapSG([][]byte{buf.Bytes()}, 0, page); err != nil {
		t.Fatal(err)
	}
	r.ends("registration", r.do(r.a, qa, regMR(fast, ib.IncRKey(fast.RKey()), ib.AccessLocalWrite|ib.AccessRemoteWrite)), ib.WCSuccess)
	x := ok(qa.Ex(ib.WRReadWithInv))(t)
	x.Start()
	x.WRFlags = ib.SendSignaled
	x.RDMAReadInv(remote.RKey(), remote.Addr(), fast.RKey())
	x.SetSGE(fast.LKey(), fast.Addr(), 11)
	if err := x.Complete(); err != nil {
		t.Fatal(err)
	}
	if wc := r.wcs(r.a.cq, 1)[0]; wc.Status != ib.WCSuccess || wc.Opcode != ib.WCRDMARead || string(buf.Bytes()[:11]) != "of the peer" {
		t.Errorf("%+v, %q", wc, buf.Bytes()[:11])
	}
	r.ends("the key is dead", r.do(r.a, qa, regMR(fast, ib.IncRKey(fast.RKey()), ib.AccessLocalWrite)), ib.WCSuccess)
	// Now without remote write: iWARP reads no such memory.
	wr := access(local, ib.WRRDMARead, remote.Addr(), remote.RKey())
	wr.SGList = []verbs.SGE{{Addr: fast.Addr(), Length: 8, LKey: fast.LKey()}}
	if wc := r.fails(r.a, qa, wr); wc.Status != ib.WCLocProtErr || ib.VendorErr(wc.VendorErr) != ib.VendorErrReadSink {
		t.Errorf("%+v", wc)
	}
}

// Scattered memory as one element; without the ability there is none.
func TestContigMapping(t *testing.T) {
	r := limitedRig(t, soft.Limits{ContigMapping: true})
	qa, _ := r.pair(ib.RC)
	remote := r.b.mem(1000)
	for i := range remote.Bytes() {
		remote.Bytes()[i] = byte(i)
	}
	list := [][]byte{make([]byte, 13), make([]byte, 700), make([]byte, 287)}
	c := ok(r.a.pd.MapContig(list))(t)
	if err := r.a.pd.Dealloc(); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	sge := c.SGE()
	wr := &verbs.SendWR{Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, SGList: []verbs.SGE{sge}, RemoteAddr: remote.Addr(), RKey: remote.RKey()}
	r.ends("read", r.do(r.a, qa, wr), ib.WCSuccess)
	if sge.Length != 1000 || !bytes.Equal(slices.Concat(list...), remote.Bytes()) {
		t.Error("other bytes")
	}
	wr.Opcode, wr.SGList = ib.WRRDMAWrite, []verbs.SGE{{Addr: sge.Addr + 10, Length: 6, LKey: sge.LKey}}
	r.ends("write", r.do(r.a, qa, wr), ib.WCSuccess)
	if !bytes.Equal(remote.Bytes()[:6], []byte{10, 11, 12, 13, 14, 15}) {
		t.Error("other bytes", remote.Bytes()[:6])
	}
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Error(err)
	}
	// Mapped again it has a new key, and other memory.
	other := []byte("other memory")
	if err := c.Map([][]byte{other[6:], other[:6]}); err != nil {
		t.Fatal(err)
	}
	if err := c.Map(list); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
	if c.SGE().LKey == sge.LKey || c.SGE().Length != 12 || c.PD() != r.a.pd {
		t.Errorf("%+v, was %+v", c.SGE(), sge)
	}
	again := *wr
	again.SGList = []verbs.SGE{c.SGE()}
	r.ends("mapped again", r.do(r.a, qa, &again), ib.WCSuccess)
	if string(remote.Bytes()[:12]) != "memoryother " {
		t.Errorf("%q", remote.Bytes()[:12])
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	r.ends("after Close", r.do(r.a, qa, wr), ib.WCLocProtErr)
	if err := c.Map([][]byte{nil}); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	for what, bad := range map[string][][]byte{"nothing": nil, "an empty slice": {nil}} {
		if _, err := r.a.pd.MapContig(bad); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v", what, err)
		}
	}
	plain := newRig(t, 9000)
	if _, err := plain.a.pd.MapContig(list); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Error(err)
	}
}

// What no device can be is refused when it is made.
func TestLimitsOutOfRange(t *testing.T) {
	for _, l := range []soft.Limits{
		{MaxSGERd: -1},
		{MaxSGERd: 33},
		{MaxSGLRd: -1},
		{MaxFastRegPages: 513},
		{MaxFastRegPages: -1},
		{MaxPIFastRegPages: 257},
	} {
		if _, err := soft.NewDevice(soft.Config{Name: "x", Port: simnet.New(1).NewPort(simnet.Config{}), Limits: l}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%+v: %v", l, err)
		}
	}
	for _, c := range []struct {
		l    soft.Limits
		want int
	}{{soft.Limits{}, 256}, {soft.Limits{MaxPIFastRegPages: -1}, 0}, {soft.Limits{MaxFastRegPages: 1}, 1}} {
		if a := ok(limitedRig(t, c.l).a.ctx.QueryDevice())(t); a.MaxPIFastRegPageListLen != c.want || a.MaxSGERd != 32 || a.ReadWithInv || a.MaxSGLRd != 0 {
			t.Errorf("%+v: %+v", c.l, a)
		}
	}
}
