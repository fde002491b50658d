//go:build interop && linux

package interop

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// TestMulticast: a datagram to a group reaches each member once and nobody else: on the other machine, and at home. The group is
// joined for real on both sides.
func TestMulticast(t *testing.T) {
	ours, kernel := peers(t)
	const grh = 40
	for _, d := range directions(ours, kernel) {
		for family, group := range map[int]netip.Addr{4: netip.MustParseAddr("239.77.1.9"), 6: netip.MustParseAddr("ff15::77:109")} {
			t.Run(fmt.Sprintf("%s/IPv%d", direction(d.requester, d.responder), family), func(t *testing.T) {
				kernelContent(t)
				cleanDevice(t, ours)
				gid := gidText(ib.GIDFromAddr(group))
				a, b := connect(t, d.requester, d.responder, link{service: "UD", family: family})
				other, outsider := connect(t, d.responder, d.responder, link{service: "UD", family: family})
				send := func(op ib.WROpcode, size int) {
					a.must(&request{
						Op: "send", Opcode: op, Flags: ib.SendSignaled, SGEs: [][2]int{{0, size}}, Imm: 0x01020304,
						GID: gid, QPN: ib.QPNMulticast, QKey: peerQKey,
					})
					a.one(ib.WCSuccess)
				}
				members := []*end{b, other}
				if !a.kernel { // what rxe's sender hears of itself is the guest's affair
					home, _ := connect(t, a.peer, a.peer, link{service: "UD", family: family})
					members = append(members, home)
				}
				for _, e := range members {
					e.must(&request{Op: "attach", GID: gid})
					t.Cleanup(func() { e.must(&request{Op: "detach", GID: gid}) })
				}
				outsider.recv(1, [2]int{0, 8192})
				for i, size := range []int{1, 1000, 4096} {
					for _, op := range []ib.WROpcode{ib.WRSend, ib.WRSendWithImm} {
						a.fill(0, size, uint64(i+1))
						for _, e := range members {
							e.recv(2, [2]int{0, 8192})
							e.recv(3, [2]int{10000, 8192})
						}
						send(op, size)
						for _, e := range members {
							want := completion{WRID: 2, Opcode: ib.WCRecv, Len: uint32(grh + size), Flags: ib.WCGRH, SrcQP: a.info.QPN}
							if op == ib.WRSendWithImm {
								want.Flags, want.Imm = want.Flags|ib.WCWithImm, 0x01020304
							}
							if wc := e.one(ib.WCSuccess); wc != want {
								t.Errorf("%s: %+v, want %+v", e.name, wc, want)
							}
							e.holds(grh, size, uint64(i+1))
							// The header ends with the destination.
							if h, want := e.bytes(0, grh), hex.EncodeToString(group.AsSlice()); !strings.HasSuffix(h, want) {
								t.Errorf("%s: header %s does not end with %s", e.name, h, want)
							}
							e.quiet()
						}
						outsider.quiet()
						// The second receive is used up by a second datagram.
						send(op, size)
						for _, e := range members {
							if wc := e.one(ib.WCSuccess); wc.WRID != 3 {
								t.Errorf("%s: %+v", e.name, wc)
							}
						}
					}
				}
			})
		}
	}
}
