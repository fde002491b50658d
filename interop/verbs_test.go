//go:build interop && linux

package interop

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// hugeSize is the longest message.
const hugeSize = 1 << 20

// sizesFor are the lengths of messages at a path MTU: none, one byte, around one packet, a length that needs padding in many packets, and
// at some path MTUs long ones.
func sizesFor(mtu int) []int {
	sizes := []int{0, 1, mtu - 1, mtu, mtu + 1, 2*mtu + 3, 64<<10 + 1}
	if mtu == 256 || mtu == 4096 {
		sizes = append(sizes, hugeSize)
	}
	return sizes
}

var dataOps = []ib.WROpcode{ib.WRSend, ib.WRSendWithImm, ib.WRRDMAWrite, ib.WRRDMAWriteWithImm, ib.WRRDMARead}

// TestVerbsRC moves every length by every operation at every path MTU, over IPv4 and IPv6, with each side as requester, and compares
// content and completions on both sides.
func TestVerbsRC(t *testing.T) {
	ours, kernel := peers(t)
	for _, d := range directions(ours, kernel) {
		for _, family := range []int{4, 6} {
			for _, mtu := range pathMTUs {
				t.Run(fmt.Sprintf("%s/IPv%d/%d", direction(d.requester, d.responder), family, mtu), func(t *testing.T) {
					// Thousands of packets fill the tap's queue of 1000: lost ones are noticed and sent again.
					kernelContent(t, "out_of_seq_request", "rcvd_seq_err")
					cleanDevice(t, ours)
					a, b := connect(t, d.requester, d.responder, link{family: family, mtu: mtu, size: hugeSize})
					for _, size := range sizesFor(mtu) {
						for _, op := range dataOps {
							oneMessage(t, a, b, op, size)
						}
					}
					a.quiet()
					b.quiet()
					ours.events(t)
				})
			}
		}
	}
}

// TestVerbsUC does the same for unreliable connections, with messages that a receive queue of the guest's network card holds.
func TestVerbsUC(t *testing.T) {
	ours, kernel := peers(t)
	for _, d := range directions(ours, kernel) {
		for _, family := range []int{4, 6} {
			for _, mtu := range []int{256, 1024, 4096} {
				t.Run(fmt.Sprintf("%s/IPv%d/%d", direction(d.requester, d.responder), family, mtu), func(t *testing.T) {
					kernelContent(t)
					cleanDevice(t, ours)
					a, b := connect(t, d.requester, d.responder, link{service: "UC", family: family, mtu: mtu})
					for _, size := range []int{0, 1, mtu, mtu + 1, 8*mtu + 3} {
						for _, op := range dataOps {
							if op != ib.WRRDMARead {
								oneMessage(t, a, b, op, size)
							}
						}
					}
					b.quiet()
				})
			}
		}
	}
}

// nextSeed makes the content of every message different.
var nextSeed uint64

// oneMessage moves size bytes from a to b, or, by READ, from b to a.
func oneMessage(t *testing.T, a, b *end, op ib.WROpcode, size int) {
	t.Helper()
	const imm = 0xA1B2C3D4
	nextSeed++
	seed := nextSeed
	from, to := a, b
	if op == ib.WRRDMARead {
		from, to = b, a
	}
	from.fill(0, size, seed)
	off := 0
	if rest := to.size - size; rest > 0 {
		off = min(rest, 3) // the other side's memory is not aligned as this one
	}
	receives := op == ib.WRSend || op == ib.WRSendWithImm || op == ib.WRRDMAWriteWithImm
	if receives {
		b.recv(seed, [2]int{off, b.size - off})
	}
	local := [2]int{0, size}
	remote := off
	if op == ib.WRRDMARead {
		local, remote = [2]int{off, size}, 0
	}
	wr := &request{WRID: seed, Opcode: op, Imm: imm, SGEs: [][2]int{local}}
	if size == 0 {
		wr.SGEs = nil
	}
	a.send(wr, remote)
	wc := a.one(ib.WCSuccess)
	wantOp := map[ib.WROpcode]ib.WCOpcode{ib.WRRDMAWrite: ib.WCRDMAWrite, ib.WRRDMAWriteWithImm: ib.WCRDMAWrite, ib.WRRDMARead: ib.WCRDMARead}[op]
	if wc.WRID != seed || wc.Opcode != wantOp {
		t.Errorf("%s: %v of %d bytes: completion %+v", a.name, op, size, wc)
	}
	if op == ib.WRRDMARead && int(wc.Len) != size {
		t.Errorf("%s: READ of %d bytes: completion %+v", a.name, size, wc)
	}
	if receives {
		wc := b.one(ib.WCSuccess)
		want := completion{WRID: seed, Opcode: ib.WCRecv, Len: uint32(size), SrcQP: wc.SrcQP}
		if op != ib.WRSend {
			want.Imm, want.Flags = imm, ib.WCWithImm
		}
		if op == ib.WRRDMAWriteWithImm {
			want.Opcode = ib.WCRecvRDMAWithImm
		}
		if b.kernel {
			wc.Flags &^= ib.WCGRH // rxe sets it on connected queue pairs, whose receives have none
		}
		if wc != want {
			t.Errorf("%s: %v of %d bytes: receive %+v, want %+v", b.name, op, size, wc, want)
		}
	}
	to.holds(off, size, seed)
}

// TestVerbsAtomics: results and memory of both atomics, with each side as requester. Memory is little-endian on the machines of this
// test, numbers on the wire are big-endian.
func TestVerbsAtomics(t *testing.T) {
	ours, kernel := peers(t)
	const at, result = 64, 128
	for _, d := range directions(ours, kernel) {
		for _, family := range []int{4, 6} {
			t.Run(fmt.Sprintf("%s/IPv%d", direction(d.requester, d.responder), family), func(t *testing.T) {
				kernelContent(t)
				cleanDevice(t, ours)
				a, b := connect(t, d.requester, d.responder, link{family: family})
				b.fill(at, 8, 1)
				value := binary.LittleEndian.Uint64(stream(1, 8))
				for i, step := range []struct {
					op        ib.WROpcode
					add, swap uint64
				}{
					{ib.WRAtomicFetchAndAdd, 1, 0},
					{ib.WRAtomicFetchAndAdd, 0x0102030405060708, 0},
					{ib.WRAtomicFetchAndAdd, ^uint64(0), 0}, // wraps
					{ib.WRAtomicFetchAndAdd, 0, 0},
					{ib.WRAtomicCmpAndSwp, ^uint64(0), 0x1112131415161718}, // a comparison that fails
					{ib.WRAtomicCmpAndSwp, 0, 0x1112131415161718},          // 0 stands for the value here
					{ib.WRAtomicCmpAndSwp, 0x1112131415161718, 0},
				} {
					if step.op == ib.WRAtomicCmpAndSwp && step.add == 0 {
						step.add = value
					}
					a.send(&request{
						WRID: uint64(i), Opcode: step.op, CompareAdd: step.add, Swap: step.swap, SGEs: [][2]int{{result, 8}},
					}, at)
					wc := a.one(ib.WCSuccess)
					if want := map[ib.WROpcode]ib.WCOpcode{ib.WRAtomicFetchAndAdd: ib.WCFetchAdd, ib.WRAtomicCmpAndSwp: ib.WCCompSwap}[step.op]; wc.Opcode != want || wc.Len != 8 {
						t.Errorf("%s: completion %+v, want %v of 8 bytes", a.name, wc, want)
					}
					if got, want := a.bytes(result, 8), littleEndian(value); got != want {
						t.Errorf("%s: step %d: result %s, want %s", a.name, i, got, want)
					}
					switch {
					case step.op == ib.WRAtomicFetchAndAdd:
						value += step.add
					case step.add == value:
						value = step.swap
					}
					if got, want := b.bytes(at, 8), littleEndian(value); got != want {
						t.Errorf("%s: step %d: memory %s, want %s", b.name, i, got, want)
					}
				}
			})
		}
	}
}

func littleEndian(v uint64) string {
	return hex.EncodeToString(binary.LittleEndian.AppendUint64(nil, v))
}

// TestVerbsQueue posts a long row of different work at once: more READs and atomics than may be under way, writes between them, a
// fence, gathered and scattered elements. Completions come in order.
func TestVerbsQueue(t *testing.T) {
	ours, kernel := peers(t)
	for _, d := range directions(ours, kernel) {
		t.Run(direction(d.requester, d.responder), func(t *testing.T) {
			kernelContent(t)
			cleanDevice(t, ours)
			a, b := connect(t, d.requester, d.responder, link{size: 256 << 10})
			const rounds, piece = 10, 5000
			a.fill(0, rounds*piece, 1)
			b.fill(128<<10, rounds*piece, 2)
			b.fill(200<<10, 8, 3)
			for i := range rounds {
				b.recv(uint64(i), [2]int{80<<10 + i*piece, 7}, [2]int{80<<10 + i*piece + 7, 1000}, [2]int{80<<10 + i*piece + 1007, piece - 1007})
			}
			id := uint64(0)
			post := func(r *request, remote int) {
				r.WRID = id
				id++
				a.send(r, remote)
			}
			for i := range rounds {
				at := i * piece
				post(&request{Opcode: ib.WRRDMARead, SGEs: [][2]int{{100<<10 + at, 1}, {100<<10 + at + 1, piece - 1}}}, 128<<10+at)
				post(&request{Opcode: ib.WRRDMAWrite, SGEs: [][2]int{{at, 3}, {at + 3, 2000}, {at + 2003, 0}, {at + 2003, piece - 2003}}}, at)
				post(&request{Opcode: ib.WRAtomicFetchAndAdd, CompareAdd: 1, SGEs: [][2]int{{200<<10 + 8*i, 8}}}, 200<<10)
				// What was read goes back: only behind the READ.
				post(&request{Opcode: ib.WRSend, Flags: ib.SendFence, SGEs: [][2]int{{100<<10 + at, piece}}}, 0)
			}
			for i, wc := range a.poll(int(id)) {
				if wc.WRID != uint64(i) || wc.Status != ib.WCSuccess {
					t.Fatalf("%s: completion %d is %+v", a.name, i, wc)
				}
			}
			for i, wc := range b.poll(rounds) {
				if wc.WRID != uint64(i) || wc.Status != ib.WCSuccess || wc.Len != piece {
					t.Fatalf("%s: receive %d is %+v", b.name, i, wc)
				}
			}
			b.holds(0, rounds*piece, 1)
			a.holds(100<<10, rounds*piece, 2)
			b.holds(80<<10, rounds*piece, 2)
			first := binary.LittleEndian.Uint64(stream(3, 8))
			var want strings.Builder
			for i := range rounds {
				want.WriteString(littleEndian(first + uint64(i)))
			}
			if got := a.bytes(200<<10, 8*rounds); got != want.String() {
				t.Errorf("results of the atomics: %s, want %s", got, want.String())
			}
		})
	}
}

// TestVerbsUD sends datagrams with and without immediate data, and to a queue pair with another Q_Key, which drops them.
func TestVerbsUD(t *testing.T) {
	ours, kernel := peers(t)
	const grh = 40
	for _, d := range directions(ours, kernel) {
		for _, family := range []int{4, 6} {
			t.Run(fmt.Sprintf("%s/IPv%d", direction(d.requester, d.responder), family), func(t *testing.T) {
				kernelContent(t)
				a, b := connect(t, d.requester, d.responder, link{service: "UD", family: family})
				send := func(op ib.WROpcode, size int, qkey ib.QKey) {
					a.must(&request{
						Op: "send", WRID: 7, Opcode: op, Flags: ib.SendSignaled, SGEs: [][2]int{{0, size}}, Imm: 99,
						GID: b.info.GID, QPN: b.info.QPN, QKey: qkey,
					})
					a.one(ib.WCSuccess)
				}
				for i, size := range []int{1, 1023, 4096} {
					for _, op := range []ib.WROpcode{ib.WRSend, ib.WRSendWithImm} {
						a.fill(0, size, uint64(i+1))
						b.recv(5, [2]int{100, 8192})
						send(op, size, peerQKey+1) // falls
						send(op, size, peerQKey)
						want := completion{WRID: 5, Opcode: ib.WCRecv, Len: uint32(grh + size), Flags: ib.WCGRH, SrcQP: a.info.QPN}
						if op == ib.WRSendWithImm {
							want.Flags, want.Imm = want.Flags|ib.WCWithImm, 99
						}
						if wc := b.one(ib.WCSuccess); wc != want {
							t.Errorf("%s: %+v, want %+v", b.name, wc, want)
						}
						b.holds(100+grh, size, uint64(i+1))
						b.quiet()
					}
				}
			})
		}
	}
}
