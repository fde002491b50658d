//go:build interop && linux

package interop

import (
	"fmt"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

const (
	// Where windows are in the responder's memory.
	windowAt, windowLen = 5000, 3000
	// windowMR gives peers nothing but what windows give.
	windowMR = ib.AccessLocalWrite | ib.AccessMWBind
	windowRW = ib.AccessRemoteWrite | ib.AccessRemoteRead
)

// window makes one at the end; it goes away before the memory does.
func (e *end) window(typ ib.MWType) int {
	e.t.Helper()
	w := e.peer.do(e.t, &request{Op: "window", Kind: typ}).MW
	e.t.Cleanup(func() { e.peer.do(e.t, &request{Op: "free window", MW: w}) })
	return w
}

// bind binds a window and returns its key. keyByte is for those of type 2.
func (e *end) bind(typ ib.MWType, w, off, length int, access ib.Access, keyByte uint8, want ib.WCStatus) ib.RKey {
	e.t.Helper()
	r := &request{Op: "bind", MW: w, Off: off, Length: length, Access: access, KeyByte: keyByte}
	if typ == ib.MWType2 {
		r.Op, r.Opcode, r.Flags, r.WRID = "send", ib.WRBindMW, ib.SendSignaled, 77
	}
	key := e.must(r).RKey
	if wc := e.one(want); want == ib.WCSuccess && wc.Opcode != ib.WCBindMW {
		e.t.Errorf("%s: bind: %+v", e.name, wc)
	}
	return key
}

// through writes into and reads from the responder's memory with a key, and wants a status.
func through(a, b *end, key ib.RKey, op ib.WROpcode, remote, length int, want ib.WCStatus) {
	a.t.Helper()
	nextSeed++
	seed := nextSeed
	from, to, fromAt, toAt := a, b, 0, remote
	if op == ib.WRRDMARead {
		from, to, fromAt, toAt = b, a, remote, 0
	}
	from.fill(fromAt, length, seed)
	a.send(&request{WRID: seed, Opcode: op, SGEs: [][2]int{{0, length}}, RKey: key}, remote)
	a.one(want)
	if want == ib.WCSuccess {
		to.holds(toAt, length, seed)
	}
}

// TestWindows: a window's key reaches the memory and nothing does without; it does not any more when the window is bound anew (type 1),
// unbound (type 1), invalidated by the owner or by the peer's SEND (type 2), or freed.
func TestWindows(t *testing.T) {
	ours, kernel := peers(t)
	for _, d := range directions(ours, kernel) {
		for _, typ := range []ib.MWType{ib.MWType1, ib.MWType2} {
			ends := []string{"freed", "local invalidate", "SEND with invalidate"}
			if typ == ib.MWType1 {
				ends = []string{"freed", "bound anew", "unbound"}
			}
			for _, how := range ends {
				for _, op := range []ib.WROpcode{ib.WRRDMAWrite, ib.WRRDMARead} {
					t.Run(fmt.Sprintf("%s/type%d/%s/%v", direction(d.requester, d.responder), typ, how, op), func(t *testing.T) {
						kernelContent(t)
						cleanDevice(t, ours)
						a, b := connect(t, d.requester, d.responder, link{access: windowMR})
						b.fill(0, b.size, 1)
						w := b.window(typ)
						key := b.bind(typ, w, windowAt, windowLen, windowRW, 0x5A, ib.WCSuccess)
						through(a, b, key, ib.WRRDMAWrite, windowAt, windowLen, ib.WCSuccess)
						through(a, b, key, ib.WRRDMARead, windowAt+17, windowLen-17, ib.WCSuccess)
						b.holds(0, windowAt, 1)
						switch how {
						case "freed":
							b.peer.do(t, &request{Op: "free window", MW: w})
						case "bound anew":
							second := b.bind(typ, w, windowAt+100, windowLen, windowRW, 0, ib.WCSuccess)
							if second == key {
								t.Errorf("%s: key %#x again", b.name, key)
							}
							through(a, b, second, ib.WRRDMAWrite, windowAt+100, windowLen, ib.WCSuccess)
						case "unbound":
							b.bind(typ, w, 0, 0, 0, 0, ib.WCSuccess)
						case "local invalidate":
							b.send(&request{Opcode: ib.WRLocalInv, InvKey: key}, 0)
							if wc := b.one(ib.WCSuccess); wc.Opcode != ib.WCLocalInv {
								t.Errorf("%s: %+v", b.name, wc)
							}
							key = again(a, b, w, key)
						case "SEND with invalidate":
							invalidate(a, b, key)
							key = again(a, b, w, key)
						}
						ours.do(t, &request{Op: "events"})
						through(a, b, key, op, windowAt, windowLen, ib.WCRemAccessErr)
						b.state(ib.QPStateErr)
						if !b.kernel {
							ours.events(t, ib.EventQPAccessErr)
						}
					})
				}
			}
		}
	}
}

// again binds an invalidated window once more, uses it, invalidates it by the peer, and returns a key that is dead: the first one. rxe
// of 6.1 refuses the low byte that the window's key has, and pyverbs gives no other one: there it is another window.
func again(a, b *end, w int, first ib.RKey) ib.RKey {
	a.t.Helper()
	if b.kernel {
		w = b.window(ib.MWType2)
	}
	second := b.bind(ib.MWType2, w, windowAt, windowLen, windowRW, 0x5B, ib.WCSuccess)
	through(a, b, second, ib.WRRDMAWrite, windowAt, windowLen, ib.WCSuccess)
	invalidate(a, b, second)
	if second != first {
		return first
	}
	return second
}

// invalidate sends with invalidate; the receive tells the key.
func invalidate(a, b *end, key ib.RKey) {
	a.t.Helper()
	for _, size := range []int{0, 3000} {
		nextSeed++
		a.fill(0, size, nextSeed)
		b.recv(nextSeed, [2]int{20000, 5000})
		op := ib.WRSend // one of them: the window is there once
		if size > 0 {
			op = ib.WRSendWithInv
		}
		a.send(&request{Opcode: op, InvKey: key, SGEs: [][2]int{{0, size}}}, 0)
		a.one(ib.WCSuccess)
		wc := b.one(ib.WCSuccess)
		if b.kernel {
			wc.Flags &^= ib.WCGRH
		}
		want := completion{WRID: nextSeed, Opcode: ib.WCRecv, Len: uint32(size), SrcQP: wc.SrcQP}
		if op == ib.WRSendWithInv {
			want.Flags, want.InvKey = ib.WCWithInv, key
			if b.kernel {
				want.Flags = ib.WCIPCSumOK // rxe hands out the kernel's number of the flag, which means this in user space
			}
		}
		if wc != want {
			a.t.Errorf("%s: receive %+v, want %+v", b.name, wc, want)
		}
		b.holds(20000, size, nextSeed)
	}
}

// TestWindowRights: what a window does not give, and what it may not be.
func TestWindowRights(t *testing.T) {
	ours, kernel := peers(t)
	for _, d := range directions(ours, kernel) {
		for _, typ := range []ib.MWType{ib.MWType1, ib.MWType2} {
			for _, c := range []struct {
				name           string
				access         ib.Access
				op             ib.WROpcode
				remote, length int
				// lenient: rxe of 6.1 lets it pass, it looks at the bounds of the region only.
				lenient bool
			}{
				{"READ through a write window", ib.AccessRemoteWrite, ib.WRRDMARead, windowAt, 100, false},
				{"WRITE through a read window", ib.AccessRemoteRead, ib.WRRDMAWrite, windowAt, 100, false},
				{"WRITE behind its end", windowRW, ib.WRRDMAWrite, windowAt + windowLen - 99, 100, true},
				{"WRITE before it", windowRW, ib.WRRDMAWrite, windowAt - 1, 100, true},
				{"WRITE behind the region", windowRW, ib.WRRDMAWrite, 64 << 10, 100, false},
			} {
				t.Run(fmt.Sprintf("%s/type%d/%s", direction(d.requester, d.responder), typ, c.name), func(t *testing.T) {
					kernelContent(t)
					a, b := connect(t, d.requester, d.responder, link{access: windowMR})
					key := b.bind(typ, b.window(typ), windowAt, windowLen, c.access, 1, ib.WCSuccess)
					want := ib.WCRemAccessErr
					if c.lenient && b.kernel {
						want = ib.WCSuccess
					}
					if want == ib.WCSuccess || c.op != ib.WRRDMAWrite || c.remote >= b.size {
						a.send(&request{Opcode: c.op, SGEs: [][2]int{{0, c.length}}, RKey: key}, c.remote)
						a.one(want)
						return
					}
					b.fill(0, b.size, 9)
					a.send(&request{Opcode: c.op, SGEs: [][2]int{{0, c.length}}, RKey: key}, c.remote)
					a.one(want)
					b.holds(0, b.size, 9)
				})
			}
		}
	}
}

// TestWindowOfAnother: a window of type 2 serves the queue pair that bound it and no other, one of type 1 every queue pair of its domain.
func TestWindowOfAnother(t *testing.T) {
	ours, kernel := peers(t)
	for _, d := range directions(ours, kernel) {
		for typ, want := range map[ib.MWType]ib.WCStatus{ib.MWType1: ib.WCSuccess, ib.MWType2: ib.WCRemAccessErr} {
			t.Run(fmt.Sprintf("%s/type%d", direction(d.requester, d.responder), typ), func(t *testing.T) {
				kernelContent(t)
				_, b := connect(t, d.requester, d.responder, link{access: windowMR})
				key := b.bind(typ, b.window(typ), windowAt, windowLen, windowRW, 3, ib.WCSuccess)
				a2, b2 := connect(t, d.requester, d.responder, link{access: windowMR})
				// The memory is that of the first pair.
				a2.send(&request{Opcode: ib.WRRDMAWrite, SGEs: onePiece, RKey: key, RemoteAddr: b.info.Addr + windowAt}, 0)
				a2.one(want)
				if want != ib.WCSuccess {
					b2.state(ib.QPStateErr)
				}
				b.state(ib.QPStateRTS)
			})
		}
	}
}

// TestWindowBindErrors: binds that must end with MW_BIND_ERR do so on both sides; nothing of it goes over the wire.
func TestWindowBindErrors(t *testing.T) {
	ours, kernel := peers(t)
	for _, p := range []*peer{ours, kernel} {
		for _, c := range []struct {
			name   string
			typ    ib.MWType
			mr     ib.Access
			access ib.Access
			off    int
			length int
		}{
			{"MR without MW_BIND", ib.MWType2, ib.AccessLocalWrite, windowRW, 0, 100},
			{"remote write without local write", ib.MWType2, ib.AccessRemoteRead | ib.AccessMWBind, ib.AccessRemoteWrite, 0, 100},
			{"beyond the MR", ib.MWType2, windowMR, windowRW, 64 << 10, 1},
			{"no length", ib.MWType2, windowMR, windowRW, 0, 0},
			{"MR without MW_BIND", ib.MWType1, ib.AccessLocalWrite, windowRW, 0, 100},
			{"beyond the MR", ib.MWType1, windowMR, windowRW, 64<<10 - 10, 11},
		} {
			t.Run(fmt.Sprintf("%s/type%d/%s", p.name, c.typ, c.name), func(t *testing.T) {
				kernelContent(t)
				_, b := connect(t, p, p, link{access: c.mr})
				b.bind(c.typ, b.window(c.typ), c.off, c.length, c.access, 1, ib.WCMWBindErr)
				b.state(ib.QPStateErr)
			})
		}
		t.Run(p.name+"/bound already", func(t *testing.T) {
			kernelContent(t)
			_, b := connect(t, p, p, link{access: windowMR})
			w := b.window(ib.MWType2)
			b.bind(ib.MWType2, w, 0, 100, windowRW, 1, ib.WCSuccess)
			b.bind(ib.MWType2, w, 0, 100, windowRW, 2, ib.WCMWBindErr)
			b.state(ib.QPStateErr)
		})
	}
}
