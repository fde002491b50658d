package dissect

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// The fields that tshark is asked for.
var packetFields = []string{
	"frame.len", "frame.packet_flags_direction", "ip.version", "ip.src", "ip.dst", "ip.id", "ip.flags", "ip.frag_offset", "ip.ttl", "ip.dsfield", "ip.len", "ip.checksum.status",
	"ipv6.src", "ipv6.dst", "ipv6.hlim", "ipv6.tclass", "ipv6.flow", "ipv6.plen", "ipv6.nxt",
	"udp.srcport", "udp.dstport", "udp.length", "udp.checksum.status",
	"infiniband.bth.opcode", "infiniband.bth.se", "infiniband.bth.m", "infiniband.bth.padcnt", "infiniband.bth.tver", "infiniband.bth.p_key",
	"infiniband.bth.destqp", "infiniband.bth.a", "infiniband.bth.reserved7", "infiniband.bth.psn",
	"infiniband.deth.q_key", "infiniband.deth.srcqp", "infiniband.reth.va", "infiniband.reth.r_key", "infiniband.reth.dmalen",
	"infiniband.atomiceth.swapdt", "infiniband.atomiceth.cmpdt", "infiniband.aeth.syndrome", "infiniband.aeth.msn",
	"infiniband.atomicacketh.origremdt", "infiniband.immdt", "infiniband.ieth", "infiniband.invariant.crc", "data.data",
}

// unknown lists what Wireshark 4.0 does not know of what our devices send. Package
// layers is tested for them with packets made by hand (TestByHand there). FECN and
// BECN are shown by no field either; nobody here sets them.
var unknown = map[roce.Transport]string{
	roce.TransportXRC: "names of opcodes only, headers are taken for payload",
	roce.TransportCNP: "0x80, not 0x81",
}

// unknownOps are the operations of RC that Wireshark 4.0 does not know.
var unknownOps = []roce.Operation{roce.OpFlush, roce.OpAtomicWrite}

func isUnknown(op roce.Opcode) bool {
	_, ok := unknown[op.Transport()]
	return ok || slices.Contains(unknownOps, op.Operation())
}

// captured is a packet of a capture, taken apart by our own code.
type captured struct {
	ip   []byte
	sent bool
	bad  bool // the capture says that its ICRC is wrong
	roce.Packet
}

func (c *captured) is6() bool { return c.ip[0]>>4 == 6 }

func (c *captured) udp() []byte {
	if c.is6() {
		return c.ip[40:]
	}
	return c.ip[20:]
}

func (c *captured) String() string {
	dir := "received"
	if c.sent {
		dir = "sent"
	}
	return fmt.Sprintf("%v, PSN %v, %s", c.Op, c.BTH.PSN(), dir)
}

func readCapture(t *testing.T, file string) []captured {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.NgReaderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var list []captured
	for {
		ip, _, opts, err := r.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		c := captured{ip: ip, sent: opts.Flags != nil && opts.Flags.Direction == pcapgo.NgEpbFlagDirectionOutbound, bad: len(opts.Comments) > 0}
		if err := roce.Parse(c.udp()[8:], &c.Packet); err != nil {
			t.Fatalf("packet %d: %v: %x", len(list), err, ip)
		}
		list = append(list, c)
	}
}

// expected is what tshark should say of a packet.
func (c *captured) expected() expect {
	e := newExpect()
	n := e.num
	u := c.udp()
	be := binary.BigEndian
	n["frame.len"], n["frame.packet_flags_direction"] = uint64(len(c.ip)), 1
	if c.sent {
		n["frame.packet_flags_direction"] = 2
	}
	n["ip.version"] = uint64(c.ip[0] >> 4)
	if c.is6() {
		e.text["ipv6.src"], e.text["ipv6.dst"] = netip.AddrFrom16([16]byte(c.ip[8:])).String(), netip.AddrFrom16([16]byte(c.ip[24:])).String()
		n["ipv6.hlim"], n["ipv6.tclass"], n["ipv6.flow"] = uint64(c.ip[7]), uint64(be.Uint16(c.ip)>>4&0xFF), 0
		n["ipv6.plen"], n["ipv6.nxt"] = uint64(len(u)), 17
	} else {
		e.text["ip.src"], e.text["ip.dst"] = netip.AddrFrom4([4]byte(c.ip[12:])).String(), netip.AddrFrom4([4]byte(c.ip[16:])).String()
		n["ip.id"], n["ip.flags"], n["ip.frag_offset"] = uint64(be.Uint16(c.ip[4:])), 2, 0
		n["ip.ttl"], n["ip.dsfield"], n["ip.len"], n["ip.checksum.status"] = uint64(c.ip[8]), uint64(c.ip[1]), uint64(len(c.ip)), 1
	}
	n["udp.srcport"], n["udp.dstport"], n["udp.length"], n["udp.checksum.status"] = uint64(be.Uint16(u)), 4791, uint64(len(u)), 1

	bit := func(b bool) uint64 {
		if b {
			return 1
		}
		return 0
	}
	b := c.BTH
	n["infiniband.bth.opcode"], n["infiniband.bth.se"], n["infiniband.bth.m"] = uint64(c.Op), bit(b.SE()), bit(b.MigReq())
	n["infiniband.bth.padcnt"], n["infiniband.bth.tver"], n["infiniband.bth.p_key"] = uint64(b.PadCount()), uint64(b.TVer()), uint64(b.PKey())
	n["infiniband.bth.destqp"], n["infiniband.bth.a"], n["infiniband.bth.reserved7"] = uint64(b.DestQP()), bit(b.AckReq()), 0
	n["infiniband.bth.psn"] = uint64(b.PSN())
	if h := c.DETH(); h != nil {
		n["infiniband.deth.q_key"], n["infiniband.deth.srcqp"] = uint64(h.QKey()), uint64(h.SrcQP())
	}
	if h := c.RETH(); h != nil {
		n["infiniband.reth.va"], n["infiniband.reth.r_key"], n["infiniband.reth.dmalen"] = h.VA(), uint64(h.RKey()), uint64(h.DMALen())
	}
	if h := c.AtomicETH(); h != nil {
		n["infiniband.reth.va"], n["infiniband.reth.r_key"] = h.VA(), uint64(h.RKey())
		n["infiniband.atomiceth.swapdt"], n["infiniband.atomiceth.cmpdt"] = h.SwapAdd(), h.Compare()
	}
	if h := c.AETH(); h != nil {
		n["infiniband.aeth.syndrome"], n["infiniband.aeth.msn"] = uint64(h.Syndrome()), uint64(h.MSN())
	}
	if h := c.AtomicAckETH(); h != nil {
		n["infiniband.atomicacketh.origremdt"] = h.Orig()
	}
	if h := c.ImmDt(); h != nil {
		e.text["infiniband.immdt"] = fmt.Sprintf("%08x", h.Data())
	}
	if h := c.IETH(); h != nil {
		e.text["infiniband.ieth"] = fmt.Sprintf("%08x", h.RKey())
	}
	if len(c.Payload) > 0 {
		// tshark takes the pad bytes for payload.
		e.text["data.data"] = hex.EncodeToString(c.Payload) + "000000"[:2*b.PadCount()]
	}
	// tshark shows the four bytes as a big-endian number.
	n["infiniband.invariant.crc"] = uint64(be.Uint32(c.B[len(c.B)-4:]))
	return e
}
