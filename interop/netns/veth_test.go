//go:build interop && linux

package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// family is a kind of address.
type family struct {
	name   string
	is     func(netip.Addr) bool
	header int // of the longest packet, with the ICRC
}

// families are the kinds that an Ethernet interface has.
var families = []family{{"ipv4", is4, 64}, {"ipv6", isULA, 84}, {"link-local", isLinkLocal, 84}}

// TestVeth moves data between two hosts on one Ethernet, and checks every packet.
func TestVeth(t *testing.T) {
	for _, link := range []struct {
		mtu, path int
		checksums bool // by software
	}{{1500, 1024, true}, {9000, 4096, true}, {9000, 4096, false}} {
		t.Run(fmt.Sprintf("mtu%d-checksums-%v", link.mtu, link.checksums), func(t *testing.T) {
			na, nb := vethPair(t, link.mtu, link.checksums)
			a, b := na.open(t, "a"), nb.open(t, "b")
			if a.port.ActiveMTU != link.path || b.port.ActiveMTU != link.path {
				t.Fatalf("active MTU %d and %d, want %d", a.port.ActiveMTU, b.port.ActiveMTU, link.path)
			}
			for _, f := range families {
				t.Run(f.name, func(t *testing.T) {
					a.t, b.t = t, t
					testVeth(t, nb, a, b, f.is, link.path)
				})
			}
			a.t, b.t = t, t
			t.Logf("counters of a: %v", nonZero(a.counters()))
		})
	}
}

func testVeth(t *testing.T, nb *namespace, a, b *node, addr func(netip.Addr) bool, mtu int) {
	const size = 4 << 20
	cap := nb.capture(t, interfaceName)
	rc := connect(a, b, connArgs{typ: ib.RC, addr: addr, size: size})
	seed := uint64(1)
	for _, n := range []int{1, mtu - 1, mtu, mtu + 1, 10 * mtu, 1 << 20} {
		seed++
		rc.write(n, 1, 1, seed)
		rc.read(n, 1, 1, seed+100)
		rc.message(n, 1, 1, seed+200)
	}
	took := rc.write(64<<10, 32, 16, 7)
	rc.message(100, 64, 16, 8)
	rc.atomics()

	uc := connect(a, b, connArgs{typ: ib.UC, addr: addr, size: size})
	for _, n := range []int{1, mtu, 20*mtu + 3} {
		seed++
		uc.message(n, 1, 1, seed)
		uc.write(n, 1, 1, seed)
	}
	ud := connect(a, b, connArgs{typ: ib.UD, addr: addr, size: size})
	for _, n := range []int{1, mtu - 1, mtu} {
		seed++
		ud.message(n, 32, 8, seed)
	}

	c := cap.checked(t)
	t.Logf("2 MiB of WRITEs in %v; on the wire: %v; checksums left to the device: %d", took, c, c.partial)
	v6 := !addr(netip.MustParseAddr("10.0.0.1"))
	for _, op := range []roce.Opcode{
		roce.OpRCWriteFirst, roce.OpRCWriteMiddle, roce.OpRCWriteLast, roce.OpRCWriteOnly, roce.OpRCReadRequest, roce.OpRCReadRespMiddle,
		roce.OpRCSendLastImm, roce.OpRCSendOnlyImm, roce.OpRCAcknowledge, roce.OpRCFetchAdd, roce.OpRCAtomicAck,
		roce.OpUCWriteFirst, roce.OpUCSendLastImm, roce.OpUDSendOnlyImm,
	} {
		if c.opcodes[op] == 0 {
			t.Errorf("no %v on the wire", op)
		}
	}
	if len(c.ports) != 4 { // RC has two directions
		t.Errorf("%d flows, want 4: %v", len(c.ports), c.ports)
	}
	if off := a.counters()["offload_failures"]; off == 0 && !v6 && c.maxID < 8 {
		t.Errorf("the largest identification is %d: nothing was segmented", c.maxID)
	}
}

// atomics adds to counters of b.
func (c *conn) atomics() {
	c.a.t.Helper()
	const n = 16
	c.b.call("Fill", DataArgs{c.eb.Index, 0, 8 * n, 55}, &struct{}{})
	send(c.a, WorkArgs{QP: c.ea.Index, Len: 8, Count: n, Depth: 4, Op: ib.WRAtomicFetchAndAdd})
	checkData(c.a, DataArgs{c.ea.Index, 0, 8 * n, 55}, "the values before")
	var got []byte
	c.b.call("Bytes", DataArgs{QP: c.eb.Index, Len: 8 * n}, &got)
	want := make([]byte, 8*n)
	pattern(want, 55)
	for i := 0; i < len(want); i += 8 {
		if binary.NativeEndian.Uint64(got[i:]) != binary.NativeEndian.Uint64(want[i:])+1 {
			c.a.t.Errorf("counter %d is %x, was %x", i/8, got[i:i+8], want[i:i+8])
		}
	}
}

// writeImm writes one message with immediate data: the largest packet that there is has RETH, immediate data and a full payload.
func (c *conn) writeImm(n int, seed uint64) {
	c.a.t.Helper()
	c.a.call("Fill", DataArgs{c.ea.Index, 0, n, seed}, &struct{}{})
	c.b.call("PostRecv", WorkArgs{QP: c.eb.Index, Count: 1}, &struct{}{})
	send(c.a, WorkArgs{QP: c.ea.Index, Len: n, Count: 1, Op: ib.WRRDMAWriteWithImm, Imm: 9})
	checkData(c.b, DataArgs{c.eb.Index, 0, n, seed}, "WRITE with immediate data")
}

// TestCase24_PathMTUBeyondLink: a path MTU that the link cannot carry is refused, and what fits exactly goes through.
func TestCase24_PathMTUBeyondLink(t *testing.T) {
	for _, link := range []struct {
		mtu, path int
		not6      bool // over IPv6 the path MTU is refused: the longest packet would not fit
	}{
		{1500, 1024, false}, {4175, 2048, false}, {4176, 4096, true}, {4180, 4096, false}, {1103, 512, false}, {1104, 1024, false},
	} {
		t.Run(fmt.Sprint(link.mtu), func(t *testing.T) {
			families := families
			if link.mtu < 1280 { // IPv6 needs that
				families = families[:1]
			}
			na, nb := vethPair(t, link.mtu, true)
			a, b := na.open(t, "a"), nb.open(t, "b")
			if a.port.ActiveMTU != link.path {
				t.Errorf("active MTU %d, want %d", a.port.ActiveMTU, link.path)
			}
			for _, f := range families {
				args := connArgs{typ: ib.RC, addr: f.is, size: 1 << 20}
				if link.not6 && f.name != "ipv4" {
					c := newConn(a, b, args)
					if err := c.join(a, c.ea, c.eb, mtuOf(link.path), 0); !errors.Is(err, syscall.EINVAL) {
						t.Errorf("%s: path MTU %d on a link of %d: %v, want EINVAL", f.name, link.path, link.mtu, err)
					}
					continue
				}
				if link.path < 4096 {
					c := newConn(a, b, args)
					err := c.join(a, c.ea, c.eb, mtuOf(2*link.path), 0)
					if !errors.Is(err, syscall.EINVAL) {
						t.Errorf("%s: path MTU %d: %v, want EINVAL", f.name, 2*link.path, err)
					} else if f.name == "ipv4" {
						t.Logf("path MTU %d: %v", 2*link.path, err)
					}
				}
				cap := nb.capture(t, interfaceName)
				c := connect(a, b, args)
				c.write(4*link.path, 2, 2, 1)
				c.write(link.path, 4, 4, 2)
				c.read(4*link.path, 2, 2, 3)
				c.message(link.path, 4, 4, 4)
				c.writeImm(link.path, 5)
				tally := cap.checked(t)
				t.Logf("%s: largest packet %d of %d", f.name, tally.largest, link.mtu)
				// The longest header stack is that of a WRITE with immediate data.
				if want := f.header + link.path; tally.largest != want || want > link.mtu {
					t.Errorf("%s: the largest packet has %d bytes, want %d, at most %d", f.name, tally.largest, want, link.mtu)
				}
			}
		})
	}
}

func nonZero(m map[string]uint64) map[string]uint64 {
	out := map[string]uint64{}
	for k, v := range m {
		if v != 0 {
			out[k] = v
		}
	}
	return out
}
