package rdmacm_test

import (
	"bytes"
	"errors"
	"math"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// What rdma_post_write(3) promises, statement by statement: CONFORMANCE.md has them.

func TestW1_OneRequestOnTheSendQueue(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		src, dst := r.a.msgs(64), r.b.write(64)
		_, init, _ := r.a.id.QP().Query()
		room := uint64(init.Cap.MaxSendWR)
		for i := range room {
			if err := r.a.id.PostWrite(i, src.Bytes(), src, ib.SendSignaled, dst.Addr(), dst.RKey()); err != nil {
				t.Fatal(i, err)
			}
		}
		for i := range room {
			wc := r.a.sent()
			r.a.good(wc, i)
			if wc.Opcode != ib.WCRDMAWrite {
				t.Errorf("%+v", wc)
			}
		}
		r.a.none(r.a.id.SendCQ())
		r.b.none(r.b.id.RecvCQ())
	})
}

func TestW2_BytesEndUpThere(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		const room = 40 << 10
		src, dst := r.a.msgs(room), r.b.write(room+2)
		for round, c := range []struct{ from, to, n int }{
			{0, 0, 1}, {7, 3, 1023}, {1, 1, 1024}, {0, 2, 1025}, {5, 11, 4096}, {0, 1, room}, {room - 1, 9, 1},
		} {
			fill(src.Bytes(), round)
			clear(dst.Bytes())
			r.meet()
			want := make([]byte, room+2)
			copy(want[c.to:], src.Bytes()[c.from:c.from+c.n])
			if err := r.a.id.PostWrite(uint64(round), src.Bytes()[c.from:c.from+c.n], src, ib.SendSignaled, dst.Addr()+uint64(c.to), dst.RKey()); err != nil {
				t.Fatal(err)
			}
			r.a.good(r.a.sent(), uint64(round))
			if !bytes.Equal(dst.Bytes(), want) {
				t.Errorf("%+v: the memory is not what was written", c)
			}
		}
	})
}

// Where the network loses, doubles and reorders packets it is the same.
func TestW2_BytesEndUpThereUnderLoss(t *testing.T) {
	r := newVRig(t, true, true)
	r.connect()
	r.net.SetDefault(simnet.Link{Delay: 2000, Loss: 0.05, Dup: 0.05, Reorder: 0.1})
	src, dst := r.a.msgs(30000), r.b.write(30000)
	for round := range 5 {
		fill(src.Bytes(), round)
		r.meet()
		if err := r.a.id.PostWrite(uint64(round), src.Bytes(), src, ib.SendSignaled, dst.Addr(), dst.RKey()); err != nil {
			t.Fatal(err)
		}
		r.a.good(r.a.sent(), uint64(round))
		if !bytes.Equal(dst.Bytes(), src.Bytes()) {
			t.Fatalf("round %d", round)
		}
	}
}

func TestW3_NilOrTheErrno(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		src, dst := r.a.msgs(4096), r.b.write(4096)
		post := func(n int, flags ib.SendFlags) error {
			return r.a.id.PostWrite(77, src.Bytes()[:n], src, flags, dst.Addr(), dst.RKey())
		}
		_, init, _ := r.a.id.QP().Query()
		for what, c := range map[string]struct {
			err   error
			errno syscall.Errno
		}{
			"too long for inline": {post(int(init.Cap.MaxInlineData)+1, ib.SendInline), syscall.EINVAL},
			"unknown flag":        {post(8, 1<<20), syscall.EINVAL},
		} {
			var oe *rdmacm.OpError
			var pe *verbs.PostError
			if !errors.Is(c.err, c.errno) || !errors.As(c.err, &oe) || oe.Op != "post_write" || oe.Param == "" ||
				!errors.As(c.err, &pe) || pe.Index != 0 || pe.WRID != 77 {
				t.Errorf("%s: %v", what, c.err)
			}
		}
		// Nothing leaves in SQD, so that the queue fills.
		r.a.hold()
		for range init.Cap.MaxSendWR {
			if err := post(8, ib.SendSignaled); err != nil {
				t.Fatal(err)
			}
		}
		if err := post(8, 0); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("full queue: %v", err)
		}
		r.a.revive()
		for range init.Cap.MaxSendWR {
			r.a.good(r.a.sent(), 77)
		}
		if err := post(8, ib.SendSignaled); err != nil {
			t.Errorf("room again: %v", err)
		}
		r.a.good(r.a.sent(), 77)
	})
}

func TestW3_NoQueuePair(t *testing.T) {
	id := newVRig(t, true, false).a.newID(rdmacm.PSTCP)
	sge := []verbs.SGE{{Length: 1}}
	for what, err := range map[string]error{
		"post_write": id.PostWrite(1, nil, nil, 0, 0, 0), "post_writev": id.PostWriteV(1, sge, 0, 0, 0),
		"post_read": id.PostRead(1, nil, nil, 0, 0, 0), "post_readv": id.PostReadV(1, sge, 0, 0, 0),
		"post_send": id.PostSend(1, nil, nil, 0), "post_sendv": id.PostSendV(1, sge, 0),
		"post_recv": id.PostRecv(1, nil, nil), "post_recvv": id.PostRecvV(1, sge),
		"post_ud_send": id.PostUDSend(1, nil, nil, 0, nil, 1),
	} {
		var oe *rdmacm.OpError
		if !errors.Is(err, syscall.EINVAL) || !errors.As(err, &oe) || oe.Op != what {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestW4_Signaled(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		src, dst := r.a.msgs(8), r.b.write(8)
		for i, flags := range []ib.SendFlags{0, 0, ib.SendSignaled, 0, ib.SendSignaled} {
			if err := r.a.id.PostWrite(uint64(i), src.Bytes(), src, flags, dst.Addr(), dst.RKey()); err != nil {
				t.Fatal(err)
			}
		}
		r.a.good(r.a.sent(), 2)
		r.a.good(r.a.sent(), 4)
		r.a.none(r.a.id.SendCQ())
	})
}

func TestW4_AllSignaledWithSigAll(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.tune = func(_ *vend, a *verbs.QPInitAttr) { a.SQSigAll = true }
		r.connect()
		src, dst := r.a.msgs(8), r.b.write(8)
		for i := range uint64(4) {
			if err := r.a.id.PostWrite(i, src.Bytes(), src, 0, dst.Addr(), dst.RKey()); err != nil {
				t.Fatal(err)
			}
		}
		for i := range uint64(4) {
			r.a.good(r.a.sent(), i)
		}
	})
}

// A fenced WRITE takes its payload after the READ before it has brought it.
func TestW4_Fence(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		local, from, to := r.a.msgs(20000), r.b.read(20000), r.b.write(20000)
		fill(from.Bytes(), 1)
		r.meet()
		if r.net != nil { // no packet of the WRITE leaves before the last of the READ has come
			read := false
			defer r.net.Sniff(func(e *simnet.Event) {
				switch {
				case e.Err != nil:
				case e.Op == roce.OpRCReadRespLast:
					read = true
				case e.Info.Flags&roce.FlagWrite != 0 && !read:
					t.Errorf("%v before the READ was answered", e.Op)
				}
			})()
		}
		if err := errors.Join(
			r.a.id.PostRead(1, local.Bytes(), local, 0, from.Addr(), from.RKey()),
			r.a.id.PostWrite(2, local.Bytes(), local, ib.SendFence|ib.SendSignaled, to.Addr(), to.RKey()),
		); err != nil {
			t.Fatal(err)
		}
		r.a.good(r.a.sent(), 2)
		if !bytes.Equal(to.Bytes(), from.Bytes()) {
			t.Error("written before it was read")
		}
	})
}

// SOLICITED means nothing on a WRITE without immediate: nobody hears of it.
func TestW4_SolicitedHasNoEffect(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		src, dst := r.a.msgs(8), r.b.write(8)
		mr := r.b.msgs(64)
		if err := r.b.id.PostRecv(1, mr.Bytes(), mr); err != nil {
			t.Fatal(err)
		}
		if r.b.id.RecvCQ().ReqNotify(true) {
			t.Fatal("completions before anything was sent")
		}
		fill(src.Bytes(), 1)
		r.meet()
		if err := r.a.id.PostWrite(1, src.Bytes(), src, ib.SendSolicited|ib.SendSignaled, dst.Addr(), dst.RKey()); err != nil {
			t.Fatal(err)
		}
		r.a.good(r.a.sent(), 1)
		r.b.none(r.b.id.RecvCQ())
		if !bytes.Equal(src.Bytes(), dst.Bytes()) {
			t.Error("not written")
		}
		// Of a SEND it does, and there is one notification only.
		if err := r.a.id.PostSend(2, src.Bytes(), src, ib.SendSolicited); err != nil {
			t.Fatal(err)
		}
		r.b.good(r.b.received(), 1)
		if cq, err := r.b.id.RecvChannel().GetCQEvent(t.Context()); err != nil || cq != r.b.id.RecvCQ() {
			t.Fatal(cq, err)
		}
		if err := cq1(r.b).AckEvents(1); err != nil {
			t.Error(err)
		}
		if err := cq1(r.b).AckEvents(1); !errors.Is(err, syscall.EINVAL) {
			t.Error("a second notification:", err)
		}
	})
}

func cq1(e *vend) *verbs.CQ { return e.id.RecvCQ() }

func TestW4_InlineIsForSendAndWrite(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		mr, rd := r.a.msgs(8), r.b.read(8)
		for what, err := range map[string]error{
			"read":  r.a.id.PostRead(1, mr.Bytes(), mr, ib.SendInline|ib.SendSignaled, rd.Addr(), rd.RKey()),
			"readv": r.a.id.PostReadV(1, []verbs.SGE{mr.SGE(0, 8)}, ib.SendInline|ib.SendSignaled, rd.Addr(), rd.RKey()),
			"empty": r.a.id.PostRead(1, nil, nil, ib.SendInline, rd.Addr(), rd.RKey()),
		} {
			if !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%s: %v", what, err)
			}
		}
		// The checksum offload is not offered.
		if err := r.a.id.PostWrite(1, mr.Bytes(), mr, ib.SendIPCSum, rd.Addr(), rd.RKey()); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("IP_CSUM: %v", err)
		}
		r.a.none(r.a.id.SendCQ())
	})
}

// With INLINE the buffer needs no region, and is free when the call returns.
func TestW5_InlineNeedsNoRegistration(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		mr, dst := r.a.msgs(8), r.b.write(256)
		buf := []byte("not registered")
		if err := r.a.id.PostWrite(1, buf, nil, ib.SendInline|ib.SendSignaled, dst.Addr(), dst.RKey()); err != nil {
			t.Fatal(err)
		}
		clear(buf)
		copy(buf, "of another one")
		if err := r.a.id.PostWrite(2, buf, mr, ib.SendInline|ib.SendSignaled, dst.Addr()+32, dst.RKey()); err != nil {
			t.Fatal(err)
		}
		clear(buf)
		r.a.good(r.a.sent(), 1)
		r.a.good(r.a.sent(), 2)
		if b := dst.Bytes(); string(b[:14]) != "not registered" || string(b[32:46]) != "of another one" {
			t.Errorf("%q", b[:46])
		}
	})
}

// Every way to name memory that is not registered ends in a local protection
// error, and the peer gets no byte.
func TestW5_LocalProtectionError(t *testing.T) {
	memory := make([]byte, 4096)
	type buf struct {
		b  []byte
		mr *verbs.MR
	}
	for what, pick := range map[string]func(r *vrig) buf{
		"another slice":        func(r *vrig) buf { return buf{make([]byte, 16), r.a.msgs(64)} },
		"begins before":        func(r *vrig) buf { return buf{memory[99:150], r.a.mr(r.a.id.RegMsgs, memory[100:200])} },
		"ends behind":          func(r *vrig) buf { return buf{memory[150:201], r.a.mr(r.a.id.RegMsgs, memory[100:200])} },
		"behind":               func(r *vrig) buf { return buf{memory[200:201], r.a.mr(r.a.id.RegMsgs, memory[100:200])} },
		"spans it":             func(r *vrig) buf { return buf{memory, r.a.mr(r.a.id.RegMsgs, memory[100:200])} },
		"no region":            func(*vrig) buf { return buf{memory[:16], nil} },
		"deregistered":         func(r *vrig) buf { mr := r.a.msgs(64); _ = rdmacm.DeregMR(mr); return buf{mr.Bytes(), mr} },
		"begins before (zero)": func(r *vrig) buf { return buf{memory[99:150], r.a.based(memory[100:200], 0)} },
		"behind (at the top)":  func(r *vrig) buf { return buf{memory[200:201], r.a.based(memory[100:200], math.MaxUint64-100)} },
		"another domain": func(r *vrig) buf {
			pd := vok(r.a.ctx.AllocPD())(r.t)
			r.a.later(pd.Dealloc)
			mr := vok(pd.RegMR(memory[:64], ib.AccessLocalWrite))(r.t)
			r.a.later(mr.Dereg)
			return buf{memory[:64], mr}
		},
	} {
		t.Run(what, func(t *testing.T) {
			r := newVRig(t, true, false)
			r.connect()
			src := pick(r)
			dst := r.b.write(8192)
			if err := r.a.id.PostWrite(5, src.b, src.mr, 0, dst.Addr(), dst.RKey()); err != nil {
				t.Fatalf("refused at the post: %v", err)
			}
			r.a.bad(r.a.sent(), ib.WCLocProtErr, 5)
			r.calm()
			if s := r.a.id.QP().State(); s != ib.QPStateErr {
				t.Errorf("state %v", s)
			}
			if !bytes.Equal(dst.Bytes(), make([]byte, 8192)) {
				t.Error("bytes were written")
			}
			if s := r.b.id.QP().State(); s != ib.QPStateRTS {
				t.Errorf("the peer's state is %v", s)
			}
		})
	}
}

// based registers memory at an address of its own.
func (e *vend) based(b []byte, iova uint64) *verbs.MR {
	e.t.Helper()
	mr := vok(e.id.PD().RegMRIOVA(b, iova, ib.AccessLocalWrite))(e.t)
	e.later(mr.Dereg)
	return mr
}

// A region that goes before the request was executed: the same, although it was there at
// the post.
func TestW5_DeregisteredBeforeCompletion(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		src, dst := r.a.msgs(5000), r.b.write(5000)
		fill(src.Bytes(), 1)
		r.a.hold()
		if err := r.a.id.PostWrite(5, src.Bytes(), src, 0, dst.Addr(), dst.RKey()); err != nil {
			t.Fatal(err)
		}
		if err := rdmacm.DeregMR(src); err != nil {
			t.Fatal(err)
		}
		r.a.revive()
		r.a.bad(r.a.sent(), ib.WCLocProtErr, 5)
		if !bytes.Equal(dst.Bytes(), make([]byte, 5000)) {
			t.Error("bytes were written")
		}
	})
}

// The slice tells where its bytes are, whatever address the region has.
func TestW5_RegionsAtOtherAddresses(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		dst := r.b.write(64)
		memory := make([]byte, 256)
		fill(memory, 1)
		for i, iova := range []uint64{0, 1, 1 << 63, math.MaxUint64 - 255} {
			mr := r.a.based(memory[:200], iova)
			for _, b := range [][]byte{memory[:64], memory[136:200], memory[50:60:70]} {
				clear(dst.Bytes())
				r.meet()
				if err := r.a.id.PostWrite(uint64(i), b, mr, ib.SendSignaled, dst.Addr(), dst.RKey()); err != nil {
					t.Fatal(err)
				}
				r.a.good(r.a.sent(), uint64(i))
				if !bytes.Equal(dst.Bytes()[:len(b)], b) {
					t.Errorf("%#x: other bytes", iova)
				}
			}
		}
	})
}

func TestW5_ZeroLengthIsNeverLookedUp(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		dead, dst := r.a.msgs(8), r.b.write(8)
		if err := rdmacm.DeregMR(dead); err != nil {
			t.Fatal(err)
		}
		fill(dst.Bytes(), 3)
		r.meet()
		want := bytes.Clone(dst.Bytes())
		for i, post := range []func(context uint64) error{
			func(c uint64) error { return r.a.id.PostWrite(c, nil, nil, ib.SendSignaled, dst.Addr(), dst.RKey()) },
			func(c uint64) error {
				return r.a.id.PostWrite(c, dead.Bytes()[:0], dead, ib.SendSignaled, dst.Addr(), dst.RKey())
			},
			func(c uint64) error {
				return r.a.id.PostWriteV(c, []verbs.SGE{{LKey: 0xDEAD, Addr: 1}, {}}, ib.SendSignaled, dst.Addr(), dst.RKey())
			},
			func(c uint64) error { return r.a.id.PostWriteV(c, nil, ib.SendSignaled, dst.Addr(), dst.RKey()) },
			func(c uint64) error { return r.a.id.PostRead(c, nil, nil, ib.SendSignaled, dst.Addr(), dst.RKey()) },
		} {
			if err := post(uint64(i)); err != nil {
				t.Fatal(i, err)
			}
			r.a.good(r.a.sent(), uint64(i))
		}
		if !bytes.Equal(dst.Bytes(), want) {
			t.Error("bytes were written")
		}
	})
}

// Whatever is wrong with the remote buffer: an error at both ends, no byte written.
func TestW6_RemoteAccessError(t *testing.T) {
	type target struct {
		mr   *verbs.MR
		addr uint64
		rkey ib.RKey
	}
	at := func(mr *verbs.MR) target { return target{mr, mr.Addr(), mr.RKey()} }
	for what, pick := range map[string]func(e *vend) target{
		"not for remote access": func(e *vend) target { return at(e.msgs(64)) },
		"for reading only":      func(e *vend) target { return at(e.read(64)) },
		"one byte too far":      func(e *vend) target { x := at(e.write(64)); x.addr++; return x },
		"before its start":      func(e *vend) target { x := at(e.write(64)); x.addr--; return x },
		"another key":           func(e *vend) target { x := at(e.write(64)); x.rkey ^= 0x100; return x },
		"deregistered":          func(e *vend) target { x := at(e.write(64)); _ = rdmacm.DeregMR(x.mr); return x },
	} {
		t.Run(what, func(t *testing.T) {
			overBoth(t, func(t *testing.T, r *vrig) {
				r.connect()
				src, dst := r.a.msgs(64), pick(r.b)
				fill(src.Bytes(), 1)
				r.meet()
				if err := r.a.id.PostWrite(6, src.Bytes(), src, 0, dst.addr, dst.rkey); err != nil {
					t.Fatal(err)
				}
				r.a.bad(r.a.sent(), ib.WCRemAccessErr, 6)
				r.b.event(ib.EventQPAccessErr)
				if a, b := r.a.id.QP().State(), r.b.id.QP().State(); a != ib.QPStateErr || b != ib.QPStateErr {
					t.Errorf("states %v, %v", a, b)
				}
				if !bytes.Equal(dst.mr.Bytes(), make([]byte, 64)) {
					t.Error("bytes were written")
				}
			})
		})
	}
}

func TestW7_NotBeforeConnected(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		refused := func(e *vend, state ib.QPState) {
			t.Helper()
			if s := e.id.QP().State(); s != state {
				t.Errorf("state %v, want %v", s, state)
			}
			buf := []byte("early")
			for what, err := range map[string]error{
				"write": e.id.PostWrite(1, buf, nil, ib.SendInline, 0, 0),
				"read":  e.id.PostRead(1, nil, nil, 0, 0, 0),
				"send":  e.id.PostSend(1, buf, nil, ib.SendInline),
			} {
				if !errors.Is(err, syscall.EINVAL) {
					t.Errorf("%s in %v: %v", what, state, err)
				}
			}
		}
		r.prepare()
		dst := r.a.msgs(64) // receives may be posted
		if err := r.a.id.PostRecv(1, dst.Bytes(), dst); err != nil {
			t.Errorf("receive: %v", err)
		}
		refused(r.a, ib.QPStateInit)
		r.request()
		refused(r.a, ib.QPStateInit)
		refused(r.b, ib.QPStateInit)
		// Allowed from the return of Accept on, although the other side knows nothing of it yet.
		src := r.b.msgs(8)
		r.accept()
		if err := r.b.id.PostSend(2, src.Bytes(), src, ib.SendSignaled); err != nil {
			t.Fatal(err)
		}
		r.establish()
		r.b.good(r.b.sent(), 2)
		r.a.good(r.a.received(), 1)
	})
}

func TestW7_ResetAndReadyToReceive(t *testing.T) {
	r := newVRig(t, true, false)
	r.connect()
	q := r.a.id.QP()
	for _, c := range []struct {
		state ib.QPState
		mask  ib.QPAttrMask
	}{
		{ib.QPStateReset, 0},
		{ib.QPStateInit, ib.QPAttrPKeyIndex | ib.QPAttrPort | ib.QPAttrAccessFlags},
		{ib.QPStateRTR, ib.QPAttrAV | ib.QPAttrPathMTU | ib.QPAttrDestQPN | ib.QPAttrRQPSN | ib.QPAttrMaxDestRDAtomic | ib.QPAttrMinRNRTimer},
	} {
		attr := ib.QPAttr{
			QPState: c.state, PortNum: 1, PathMTU: ib.MTU1024, DestQPN: r.b.id.QP().Num(), MaxDestRDAtomic: 1, MinRNRTimer: 1,
			AHAttr: ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), PortNum: 1, HopLimit: 64},
		}
		if err := q.Modify(&attr, c.mask|ib.QPAttrState); err != nil {
			t.Fatal(c.state, err)
		}
		if err := r.a.id.PostWrite(1, []byte("x"), nil, ib.SendInline, 0, 0); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%v: %v", c.state, err)
		}
	}
}

func TestW7_AfterDisconnect(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		src, dst := r.a.msgs(8), r.b.write(8)
		r.disconnect()
		for i := range uint64(3) {
			if err := r.a.id.PostWrite(i, src.Bytes(), src, 0, dst.Addr(), dst.RKey()); err != nil {
				t.Fatal(err)
			}
			r.a.bad(r.a.sent(), ib.WCWRFlushErr, i)
		}
	})
}

func TestW7_AfterAnError(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		src, dst := r.a.msgs(8), r.b.write(8)
		for i := range uint64(4) {
			if err := r.a.id.PostWrite(i, src.Bytes(), src, 0, dst.Addr(), dst.RKey()^0x100); err != nil {
				t.Fatal(err)
			}
		}
		r.a.bad(r.a.sent(), ib.WCRemAccessErr, 0)
		for i := range uint64(3) {
			r.a.bad(r.a.sent(), ib.WCWRFlushErr, i+1)
		}
		if err := r.a.id.PostWrite(9, src.Bytes(), src, 0, dst.Addr(), dst.RKey()); err != nil {
			t.Fatal(err)
		}
		r.a.bad(r.a.sent(), ib.WCWRFlushErr, 9)
	})
}

func TestW7_WaitsInSQD(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		src, dst := r.a.msgs(8), r.b.write(8)
		fill(src.Bytes(), 1)
		r.meet()
		r.a.hold()
		if err := r.a.id.PostWrite(1, src.Bytes(), src, ib.SendSignaled, dst.Addr(), dst.RKey()); err != nil {
			t.Fatal(err)
		}
		r.a.none(r.a.id.SendCQ())
		if !bytes.Equal(dst.Bytes(), make([]byte, 8)) {
			t.Error("written")
		}
		r.meet()
		r.a.revive()
		r.a.good(r.a.sent(), 1)
		if !bytes.Equal(dst.Bytes(), src.Bytes()) {
			t.Error("not written")
		}
	})
}

func TestW8_ContextComesBack(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		src, dst := r.a.msgs(8), r.b.write(8)
		for _, c := range []uint64{0, 1, 1 << 31, 1 << 32, math.MaxInt64, math.MaxUint64} {
			if err := r.a.id.PostWrite(c, src.Bytes(), src, ib.SendSignaled, dst.Addr(), dst.RKey()); err != nil {
				t.Fatal(err)
			}
			r.a.good(r.a.sent(), c)
		}
		for _, c := range []uint64{math.MaxUint64, 0, 7} { // failed, then flushed
			if err := r.a.id.PostWrite(c, src.Bytes(), src, 0, dst.Addr(), 0); err != nil {
				t.Fatal(err)
			}
		}
		r.a.bad(r.a.sent(), ib.WCRemAccessErr, math.MaxUint64)
		r.a.bad(r.a.sent(), ib.WCWRFlushErr, 0)
		r.a.bad(r.a.sent(), ib.WCWRFlushErr, 7)
	})
}

func TestW9_ZeroLength(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		src, dst := r.a.msgs(8), r.b.write(8)
		for i, b := range [][]byte{src.Bytes()[:0], src.Bytes()[8:], {}, nil} {
			// Nobody looks at key and address of nothing (IBA 9.7.4.1.4).
			for _, rkey := range []ib.RKey{dst.RKey(), 0xBAD} {
				if err := r.a.id.PostWrite(uint64(i), b, src, ib.SendSignaled, dst.Addr(), rkey); err != nil {
					t.Fatal(err)
				}
				r.a.good(r.a.sent(), uint64(i))
			}
		}
		if !bytes.Equal(dst.Bytes(), make([]byte, 8)) {
			t.Error("written")
		}
	})
}

func TestW9_LongMessage(t *testing.T) {
	r := newVRig(t, true, false)
	r.connect()
	const size = 8<<20 + 3
	src, dst := r.a.msgs(size), r.b.write(size)
	fill(src.Bytes(), 1)
	r.meet()
	if err := r.a.id.PostWrite(1, src.Bytes(), src, ib.SendSignaled, dst.Addr(), dst.RKey()); err != nil {
		t.Fatal(err)
	}
	r.a.good(r.a.sent(), 1)
	if !bytes.Equal(src.Bytes(), dst.Bytes()) {
		t.Error("other bytes")
	}
}

// The longest message that the port tells, and one more byte: by elements of a null
// region, which needs no memory, on a queue pair that flushes.
func TestW9_UpToMaxMsgSz(t *testing.T) {
	overBoth(t, func(t *testing.T, r *vrig) {
		r.connect()
		null := vok(r.a.id.PD().NullMR())(t)
		r.a.later(null.Dereg)
		port := vok(r.a.ctx.QueryPort(1))(t)
		if port.MaxMsgSz != 1<<31 {
			t.Errorf("max_msg_sz %d", port.MaxMsgSz)
		}
		r.disconnect()
		for _, list := range [][]verbs.SGE{
			{null.SGE(0, 1<<31)},
			{null.SGE(0, 1<<30), null.SGE(0, 1<<30)},
		} {
			if err := r.a.id.PostWriteV(1, list, 0, 0, 0); err != nil {
				t.Errorf("%v: %v", list, err)
			}
			r.a.bad(r.a.sent(), ib.WCWRFlushErr, 1)
		}
		for _, list := range [][]verbs.SGE{
			{null.SGE(0, 1<<31+1)},
			{null.SGE(0, 1<<31), null.SGE(0, 1)},
			{null.SGE(0, math.MaxUint32), null.SGE(0, 9)}, // 8 bytes in 32 bits
		} {
			if err := r.a.id.PostWriteV(1, list, 0, 0, 0); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%v: %v", list, err)
			}
		}
		r.a.none(r.a.id.SendCQ())
	})
}
