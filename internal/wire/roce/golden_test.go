package roce

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// golden is a packet of testdata/*.hex: lines that begin with # tell where the packets come from, others are a name, a colon and
// the hex digits of an IP packet from the version byte to the ICRC; white space between digits does not count.
type golden struct {
	file, name string
	ip         []byte
}

func (g *golden) udp() []byte {
	if g.ip[0]>>4 == 6 {
		return g.ip[ipv6Len:]
	}
	return g.ip[ipv4Len:]
}

// roce returns the UDP payload.
func (g *golden) roce() []byte { return g.udp()[udpLen:] }

func (g *golden) id() uint16 {
	if g.ip[0]>>4 == 6 {
		return 0
	}
	return binary.BigEndian.Uint16(g.ip[4:])
}

func (g *golden) addrs() (src, dst netip.Addr) {
	if g.ip[0]>>4 == 6 {
		return netip.AddrFrom16([16]byte(g.ip[8:])), netip.AddrFrom16([16]byte(g.ip[24:]))
	}
	return netip.AddrFrom4([4]byte(g.ip[12:])), netip.AddrFrom4([4]byte(g.ip[16:]))
}

func (g *golden) path() Path {
	src, dst := g.addrs()
	return NewPath(src, dst, binary.BigEndian.Uint16(g.udp()))
}

// readGolden reads all files. No file, or a file without packets, is an error: then the tests would check nothing.
func readGolden(t testing.TB) []golden {
	t.Helper()
	files, err := filepath.Glob("testdata/*.hex")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden packets in testdata: %v", err)
	}
	var all []golden
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		before := len(all)
		for i, line := range strings.Split(string(text), "\n") {
			line = strings.TrimSpace(line)
			if line == "" || line[0] == '#' {
				continue
			}
			name, digits, found := strings.Cut(line, ":")
			ip, err := hex.DecodeString(strings.Join(strings.Fields(digits), ""))
			if !found || err != nil || len(ip) < ipv4Len+udpLen+BTHLen+ICRCLen || ip[0]>>4 == 6 && len(ip) < ipv6Len+udpLen+BTHLen+ICRCLen {
				t.Fatalf("%s:%d: not a packet: %v", f, i+1, err)
			}
			all = append(all, golden{filepath.Base(f), strings.TrimSpace(name), ip})
		}
		if len(all) == before {
			t.Fatalf("%s has no packets", f)
		}
	}
	return all
}

func findGolden(t testing.TB, name string) golden {
	t.Helper()
	for _, g := range readGolden(t) {
		if g.name == name {
			return g
		}
	}
	t.Fatalf("no golden packet %q", name)
	return golden{}
}

// TestGolden checks every golden packet: parse, ICRC with and without the identification, and that writing every header
// anew gives the same bytes.
func TestGolden(t *testing.T) {
	for _, g := range readGolden(t) {
		t.Run(g.file+"/"+g.name, func(t *testing.T) {
			b := g.roce()
			path := g.path()
			if n := int(binary.BigEndian.Uint16(g.udp()[4:])); n != udpLen+len(b) {
				t.Fatalf("UDP length is %d, %d bytes are there", n, udpLen+len(b))
			}
			if port := binary.BigEndian.Uint16(g.udp()[2:]); port != Port {
				t.Fatalf("destination port is %d", port)
			}
			if !path.Check(b, g.id()) {
				t.Errorf("Check fails: ICRC is %#x, computed %#x", ICRC(b), path.Compute(b, g.id()))
			}
			if id, ok := path.Solve(b); !ok || id != g.id() {
				t.Errorf("Solve = %#x, %v, want %#x", id, ok, g.id())
			}
			if got := plainICRC(g.ip); got != ICRC(b) {
				t.Errorf("plain calculation gives %#x, packet has %#x", got, ICRC(b))
			}
			var p Packet
			if err := Parse(b, &p); err != nil {
				t.Fatal(err)
			}
			if got := rebuild(&p); !bytes.Equal(got, b[:len(b)-ICRCLen]) {
				t.Errorf("headers written anew differ\n got %x\nwant %x", got, b[:len(b)-ICRCLen])
			}
			checkGRH(t, &g)
		})
	}
}

// rebuild writes a parsed packet anew through the setters of all its headers, without the ICRC.
func rebuild(p *Packet) []byte {
	pad := p.BTH.PadCount()
	b := make([]byte, p.Info.HdrLen+len(p.Payload)+pad)
	h := BTH(b)
	h.Put(p.Op, p.BTH.SE(), pad, p.BTH.PKey(), p.BTH.DestQP(), p.BTH.AckReq(), p.BTH.PSN())
	h.SetMigReq(p.BTH.MigReq())
	h.SetFECN(p.BTH.FECN())
	h.SetBECN(p.BTH.BECN())
	if v := p.RETH(); v != nil {
		RETH(b[p.Info.RETH:]).Put(v.VA(), v.RKey(), v.DMALen())
	}
	if v := p.AETH(); v != nil {
		AETH(b[p.Info.AETH:]).Put(v.Syndrome(), v.MSN())
	}
	if v := p.DETH(); v != nil {
		DETH(b[p.Info.DETH:]).Put(v.QKey(), v.SrcQP())
	}
	if v := p.AtomicETH(); v != nil {
		AtomicETH(b[p.Info.AtomicETH:]).Put(v.VA(), v.RKey(), v.SwapAdd(), v.Compare())
	}
	if v := p.AtomicAckETH(); v != nil {
		AtomicAckETH(b[p.Info.AtomicAck:]).Put(v.Orig())
	}
	if v := p.ImmDt(); v != nil {
		ImmDt(b[p.Info.Imm:]).Put(v.Data())
	}
	if v := p.IETH(); v != nil {
		IETH(b[p.Info.IETH:]).Put(v.RKey())
	}
	if v := p.XRCETH(); v != nil {
		XRCETH(b[p.Info.XRCETH:]).Put(v.SRQN())
	}
	if v := p.FETH(); v != nil {
		FETH(b[p.Info.FETH:]).Put(v.Placement(), v.Selectivity())
	}
	copy(b[p.Info.HdrLen:], p.Payload)
	return b
}

// checkGRH rebuilds the IP header of a golden packet as a UD receive shows it.
func checkGRH(t *testing.T, g *golden) {
	t.Helper()
	src, dst := g.addrs()
	want, got := make([]byte, GRHLen), bytes.Repeat([]byte{0xA5}, GRHLen)
	var class, hop uint8
	var flow uint32
	if src.Is4() {
		copy(want[GRHLen-ipv4Len:], g.ip[:ipv4Len])
		class, hop = g.ip[1], g.ip[8]
		PutGRH4(got, src, dst, class, hop, g.id(), len(g.roce()))
	} else {
		copy(want, g.ip)
		w := binary.BigEndian.Uint32(g.ip)
		class, hop, flow = uint8(w>>20), g.ip[7], w&0xFFFFF
		PutGRH6(got, src, dst, class, flow, hop, len(g.roce()))
	}
	if !bytes.Equal(got, want) {
		t.Errorf("GRH area\n got %x\nwant %x", got, want)
	}
	s, d, c, h, f, ok := ParseGRH(want)
	if !ok || s != src || d != dst || c != class || h != hop || f != flow {
		t.Errorf("ParseGRH = %v %v %#x %d %#x %v", s, d, c, h, f, ok)
	}
}

// TestGoldenFields decodes the worked packets and builds them from their fields.
func TestGoldenFields(t *testing.T) {
	for _, name := range []string{"rc-send-only", "rc-send-only-ipv6"} {
		g := findGolden(t, name)
		var p Packet
		if err := Parse(g.roce(), &p); err != nil {
			t.Fatal(err)
		}
		if p.Op != OpRCSendOnly || string(p.Payload) != "hello" || p.BTH.PadCount() != 3 || p.BTH.DestQP() != 0x11 ||
			!p.BTH.AckReq() || p.BTH.PSN() != 0x123456 || p.BTH.PKey() != 0xFFFF || p.BTH.MigReq() || p.BTH.SE() {
			t.Errorf("%s: decoded %v payload %q %x", name, p.Op, p.Payload, []byte(p.BTH))
		}
		b := make([]byte, BTHLen+8+ICRCLen)
		BTH(b).Put(OpRCSendOnly, false, PadLen(5), 0xFFFF, 0x11, true, 0x123456)
		BTH(b).SetMigReq(false)
		copy(b[BTHLen:], "hello")
		path := g.path()
		PutICRC(b[len(b)-ICRCLen:], path.Compute(b, g.id()))
		if !bytes.Equal(b, g.roce()) {
			t.Errorf("%s: built\n got %x\nwant %x", name, b, g.roce())
		}
	}

	g := findGolden(t, "rc-ack")
	var p Packet
	if err := Parse(g.roce(), &p); err != nil {
		t.Fatal(err)
	}
	if p.Op != OpRCAcknowledge || len(p.Payload) != 0 || p.BTH.DestQP() != 0x12 || p.BTH.AckReq() ||
		p.AETH().Syndrome() != AckNoCredit || p.AETH().MSN() != 1 {
		t.Errorf("ACK: decoded %v %x", p.Op, g.roce())
	}
	b := make([]byte, BTHLen+AETHLen+ICRCLen)
	BTH(b).Put(OpRCAcknowledge, false, 0, 0xFFFF, 0x12, false, 0x123456)
	BTH(b).SetMigReq(false)
	AETH(b[BTHLen:]).Put(AckNoCredit, 1)
	path := g.path()
	PutICRC(b[BTHLen+AETHLen:], path.Compute(b, g.id()))
	if !bytes.Equal(b, g.roce()) {
		t.Errorf("ACK: built\n got %x\nwant %x", b, g.roce())
	}

	g = findGolden(t, "cm-req")
	if err := Parse(g.roce(), &p); err != nil {
		t.Fatal(err)
	}
	if p.Op != OpUDSendOnly || p.BTH.DestQP() != 1 || p.DETH().QKey() != 0x80010000 || p.DETH().SrcQP() != 1 || len(p.Payload) != 256 ||
		!bytes.Contains(p.Payload, []byte("test")) {
		t.Errorf("CM REQ: decoded %v, %d bytes of payload, %x", p.Op, len(p.Payload), []byte(p.DETH()))
	}
}
