package soft

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Posting, polling and waiting allocate nothing.
func TestDataPathAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	ha, hb := newHost(t, setup{}), newHost(t, setup{})
	a, b := ha.qp(ib.RC, 0), hb.qp(ib.RC, 0)
	join(a, b, ib.MTU4096)
	uda, udb := ha.qp(ib.UD, 0), hb.qp(ib.UD, 0)
	join(uda, udb, 0)
	at := uda.ah(udb)
	ah, err := ha.dev.CreateAH(ha.pd, &at)
	must(t, err)
	ha.later(ah.Destroy)
	remote := func(op ib.WROpcode, n int) driver.SendWR {
		return driver.SendWR{
			Opcode: op, Flags: ib.SendSignaled, SGList: ha.sge(0, n), RemoteAddr: hb.mr.Addr(), RKey: hb.mr.RKey(), CompareAdd: 1,
		}
	}
	inline := driver.SendWR{
		Opcode: ib.WRRDMAWrite, Flags: ib.SendSignaled | ib.SendInline, InlineData: make([]byte, 64),
		RemoteAddr: hb.mr.Addr(), RKey: hb.mr.RKey(),
	}
	dgram := remote(ib.WRSend, 256)
	dgram.AH, dgram.RemoteQPN, dgram.RemoteQKey = ah, udb.Num(), testQKey
	// Counted, timed and told about: b's queue is armed and moderated all the time.
	cntr, err := ha.dev.CreateCompCntr()
	must(t, err)
	ha.later(cntr.Destroy)
	counted := ha.qp(ib.RC, 0)
	must(t, counted.QP.(driver.CompCntrAttacher).AttachCompCntr(cntr, ib.CompCntrAll))
	join(counted, hb.qp(ib.RC, 0), ib.MTU4096)
	x, srqs := hb.xrc(2)
	ini := ha.qp(ib.XRCSend, 0)
	join(ini, hb.xrcTarget(x), ib.MTU4096)
	xrc := remote(ib.WRSend, 256)
	xrc.RemoteSRQN = srqs[1].Num()
	flushable, err := hb.pd.RegMR(make([]byte, 4096), 0, false, allRights|ib.AccessFlushGlobal)
	must(t, err)
	hb.later(flushable.Dereg)
	flush := driver.SendWR{
		Opcode: ib.WRFlush, Flags: ib.SendSignaled, RemoteAddr: flushable.Addr(), RKey: flushable.RKey(), Length: 4096, FlushType: ib.FlushGlobal,
	}
	bindable, err := hb.pd.RegMR(make([]byte, 32<<10), 0, false, ib.AccessLocalWrite|ib.AccessMWBind)
	must(t, err)
	hb.later(bindable.Dereg)
	win, err := hb.pd.(driver.MWPD).AllocMW(ib.MWType2)
	must(t, err)
	hb.later(win.Dealloc)
	b.send(driver.SendWR{Opcode: ib.WRBindMW, RKey: win.RKey(), Bind: &driver.BindInfo{
		MW: win, MR: bindable, Addr: bindable.Addr(), Length: bindable.Length(), Access: ib.AccessRemoteWrite,
	}})
	hb.ok()
	window := remote(ib.WRRDMAWrite, 32<<10)
	window.RemoteAddr, window.RKey = bindable.Addr(), win.RKey()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, c := range []struct {
		what string
		q    *end
		wr   driver.SendWR
		recv interface {
			PostRecv(wrs []driver.RecvWR) (int, error)
		}
		wait bool
	}{
		{"write 8", a, remote(ib.WRRDMAWrite, 8), nil, false},
		{"write 32 KiB", a, remote(ib.WRRDMAWrite, 32<<10), nil, false},
		{"write inline", a, inline, nil, false},
		{"read 8", a, remote(ib.WRRDMARead, 8), nil, false},
		{"read 32 KiB", a, remote(ib.WRRDMARead, 32<<10), nil, false},
		{"atomic", a, remote(ib.WRAtomicFetchAndAdd, 8), nil, false},
		{"send", a, remote(ib.WRSend, 256), b, false},
		{"datagram", uda, dgram, udb, false},
		{"atomic write", a, remote(ib.WRAtomicWrite, 8), nil, false},
		{"flush", a, flush, nil, false},
		{"window", a, window, nil, false},
		{"counted", counted, remote(ib.WRRDMAWrite, 8), nil, false},
		{"XRC", ini, xrc, srqs[1], false},
		{"write and wait", a, remote(ib.WRRDMAWrite, 8), nil, true},
		{"send and wait", a, remote(ib.WRSend, 256), b, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			wrs, wcs := []driver.SendWR{c.wr}, make([]driver.WC, 4)
			rwrs := []driver.RecvWR{{SGList: hb.sge(1024, 1024)}}
			take := func(h *host, peer *host) {
				for {
					n, err := h.cq.Poll(wcs)
					if err != nil || n > 0 && wcs[0].Status != ib.WCSuccess {
						t.Fatal(n, err, wcs[0].Status)
					}
					if n > 0 {
						return
					}
					if c.wait {
						if err := h.cq.Wait(ctx); err != nil {
							t.Fatal(err)
						}
					} else {
						peer.dev.Progress()
					}
				}
			}
			must(t, hb.cq.(driver.CQModerator).Moderate(2, time.Millisecond))
			one := func() {
				hb.cq.Arm(false)
				if c.recv != nil {
					if _, err := c.recv.PostRecv(rwrs); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := c.q.PostSend(wrs); err != nil {
					t.Fatal(err)
				}
				take(ha, hb)
				if c.recv != nil {
					take(hb, ha)
				}
			}
			for range 200 { // pools and buffers grow to their size
				one()
			}
			runtime.GC()
			one()
			if n := testing.AllocsPerRun(300, one); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}
