package layers_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gopacket/gopacket"
	gplayers "github.com/gopacket/gopacket/layers"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/layers"
)

var registerOnce = sync.OnceFunc(layers.Register)

// golden is packets of the wire by name, IP header first: worked examples, and
// what Linux 6.1 sent.
func golden(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("../internal/wire/roce/testdata/*.hex")
	if err != nil || len(files) < 2 {
		t.Fatalf("no golden packets: %v", err)
	}
	all := map[string][]byte{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			name, digits, ok := strings.Cut(line, ":")
			if !ok || name[0] == '#' {
				continue
			}
			b, err := hex.DecodeString(strings.Join(strings.Fields(digits), ""))
			if err != nil {
				t.Fatalf("%s: %s: %v", f, name, err)
			}
			all[name] = b
		}
	}
	return all
}

func decode(ip []byte) gopacket.Packet {
	registerOnce()
	first := gplayers.LayerTypeIPv4
	if len(ip) > 0 && ip[0]>>4 == 6 {
		first = gplayers.LayerTypeIPv6
	}
	return gopacket.NewPacket(ip, first, gopacket.NoCopy)
}

// build serializes the layers of a packet anew.
func build(t testing.TB, p gopacket.Packet) []byte {
	t.Helper()
	var list []gopacket.SerializableLayer
	for _, l := range p.Layers() {
		switch l := l.(type) {
		case *layers.IPCM: // is in the private data of the message before
		case gopacket.SerializableLayer:
			list = append(list, l)
		default:
			t.Fatalf("a layer %v", l.LayerType())
		}
	}
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{}, list...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Every golden packet has the layers that its opcode says, with the values that
// the wire package reads, and is the same bytes when built anew.
func TestGolden(t *testing.T) {
	for name, ip := range golden(t) {
		p := decode(ip)
		if e := p.ErrorLayer(); e != nil {
			t.Errorf("%s: %v", name, e.Error())
			continue
		}
		compare(t, name, p)
		if ok, err := layers.CheckICRC(ip); !ok || err != nil {
			t.Errorf("%s: ICRC %v %v", name, ok, err)
		}
		if ok, err := layers.PacketICRC(p); !ok || err != nil {
			t.Errorf("%s: ICRC of the packet %v %v", name, ok, err)
		}
		if got := build(t, p); !bytes.Equal(got, ip) {
			t.Errorf("%s: built\n got %x\nwant %x", name, got, ip)
		}
	}
}

// compare holds the layers of a RoCE packet against the views of the wire package.
func compare(t testing.TB, name string, p gopacket.Packet) {
	t.Helper()
	var v roce.Packet
	udp := p.Layer(gplayers.LayerTypeUDP).(*gplayers.UDP)
	if err := roce.Parse(udp.Payload, &v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	bth := p.Layer(layers.LayerTypeBTH).(*layers.BTH)
	want := layers.BTH{
		BaseLayer: bth.BaseLayer, Opcode: layers.Opcode(v.Op), SolicitedEvent: v.BTH.SE(), MigReq: v.BTH.MigReq(), PadCount: uint8(v.BTH.PadCount()),
		PKey: v.BTH.PKey(), FECN: v.BTH.FECN(), BECN: v.BTH.BECN(), DestQP: v.BTH.DestQP(), AckReq: v.BTH.AckReq(), PSN: uint32(v.BTH.PSN()),
	}
	if bth.NextLayerType(); bth.Opcode != want.Opcode || bth.SolicitedEvent != want.SolicitedEvent || bth.MigReq != want.MigReq || bth.PadCount != want.PadCount ||
		bth.TVer != 0 || bth.PKey != want.PKey || bth.FECN != want.FECN || bth.BECN != want.BECN || bth.DestQP != want.DestQP || bth.AckReq != want.AckReq || bth.PSN != want.PSN {
		t.Errorf("%s: BTH %+v", name, bth)
	}
	n := 0 // extension headers
	check := func(lt gopacket.LayerType, there bool, same func(l gopacket.Layer) bool) {
		t.Helper()
		l := p.Layer(lt)
		if (l != nil) != there {
			t.Errorf("%s: layer %v: %v, want %v", name, lt, l, there)
		} else if there {
			n++
			if !same(l) {
				t.Errorf("%s: %+v", name, l)
			}
		}
	}
	reth, deth, aeth, atomic, ack := v.RETH(), v.DETH(), v.AETH(), v.AtomicETH(), v.AtomicAckETH()
	check(layers.LayerTypeRETH, reth != nil, func(l gopacket.Layer) bool {
		h := l.(*layers.RETH)
		return h.VA == reth.VA() && h.RKey == reth.RKey() && h.DMALen == reth.DMALen()
	})
	check(layers.LayerTypeDETH, deth != nil, func(l gopacket.Layer) bool {
		h := l.(*layers.DETH)
		return h.QKey == deth.QKey() && h.SrcQP == deth.SrcQP()
	})
	check(layers.LayerTypeAETH, aeth != nil, func(l gopacket.Layer) bool {
		h := l.(*layers.AETH)
		return h.Syndrome == layers.Syndrome(aeth.Syndrome()) && h.MSN == aeth.MSN()
	})
	check(layers.LayerTypeAtomicETH, atomic != nil, func(l gopacket.Layer) bool {
		h := l.(*layers.AtomicETH)
		return h.VA == atomic.VA() && h.RKey == atomic.RKey() && h.SwapAdd == atomic.SwapAdd() && h.Compare == atomic.Compare()
	})
	check(layers.LayerTypeAtomicAckETH, ack != nil, func(l gopacket.Layer) bool { return l.(*layers.AtomicAckETH).Original == ack.Orig() })
	check(layers.LayerTypeImmDt, v.ImmDt() != nil, func(l gopacket.Layer) bool { return l.(*layers.ImmDt).Data == v.ImmDt().Data() })
	check(layers.LayerTypeIETH, v.IETH() != nil, func(l gopacket.Layer) bool { return l.(*layers.IETH).RKey == v.IETH().RKey() })
	check(layers.LayerTypeXRCETH, v.XRCETH() != nil, func(l gopacket.Layer) bool { return l.(*layers.XRCETH).SRQ == v.XRCETH().SRQN() })
	check(layers.LayerTypeFETH, v.FETH() != nil, func(l gopacket.Layer) bool {
		h := l.(*layers.FETH)
		return h.Placement == v.FETH().Placement() && h.Selectivity == v.FETH().Selectivity() && h.Reserved == 0
	})
	check(layers.LayerTypeCNP, v.Op == roce.OpCNP, func(l gopacket.Layer) bool { return l.(*layers.CNP).Reserved == [16]byte{} })
	icrc := p.Layer(layers.LayerTypeICRC).(*layers.ICRC)
	if icrc.Value != roce.ICRC(udp.Payload) || len(icrc.Pad) != v.BTH.PadCount() {
		t.Errorf("%s: ICRC %+v", name, icrc)
	}
	if p.Layer(layers.LayerTypeMAD) == nil {
		var payload []byte
		if app := p.ApplicationLayer(); app != nil {
			payload = app.Payload()
		}
		if !bytes.Equal(payload, v.Payload) {
			t.Errorf("%s: payload %x, want %x", name, payload, v.Payload)
		}
	}
	// What each header says of the next is so.
	all := p.Layers()
	for i := 2; i+1 < len(all); i++ {
		d, ok := all[i].(interface{ NextLayerType() gopacket.LayerType })
		if !ok || all[i+1].LayerType() == layers.LayerTypeICRC || all[i+1].LayerType() == layers.LayerTypeIPCM {
			continue
		}
		if d.NextLayerType() != all[i+1].LayerType() {
			t.Errorf("%s: after %v comes %v, not %v", name, all[i].LayerType(), all[i+1].LayerType(), d.NextLayerType())
		}
	}
}

// Captured in part, a packet shows what there is and fails without a panic.
func TestTruncated(t *testing.T) {
	for name, ip := range golden(t) {
		for n := range ip {
			if n > 120 && n%16 != 0 { // all within the headers
				continue
			}
			p := decode(ip[:n])
			if p.Layer(layers.LayerTypeICRC) != nil {
				t.Fatalf("%s: %d bytes have an ICRC", name, n)
			}
			if bth := p.Layer(layers.LayerTypeBTH); bth == nil && n >= 60 {
				t.Fatalf("%s: %d bytes have no BTH: %v", name, n, p)
			}
			if ok, err := layers.PacketICRC(p); ok || !errors.Is(err, layers.ErrNotRoCE) {
				t.Fatalf("%s: %d bytes: ICRC %v %v", name, n, ok, err)
			}
			if n%5 == 0 {
				_ = p.String()
			}
		}
	}
}

// A change anywhere under the ICRC is noticed, one of what routers change is not.
func TestICRC(t *testing.T) {
	for _, name := range []string{"rc-send-only", "rc-send-only-ipv6"} {
		ip := golden(t)[name]
		udp := 20
		free := map[int]bool{1: true, 8: true, 10: true, 11: true}
		if ip[0]>>4 == 6 {
			udp, free = 40, map[int]bool{0: true, 1: true, 2: true, 3: true, 7: true} // bit 0 of byte 0 is of the traffic class
		}
		free[udp+6], free[udp+7], free[udp+8+4] = true, true, true
		for i := range ip {
			b := bytes.Clone(ip)
			b[i] ^= 0x01
			ok, err := layers.CheckICRC(b)
			if err == nil && ok != free[i] {
				t.Errorf("%s: byte %d changed: %v", name, i, ok)
			}
			if err != nil && !errors.Is(err, layers.ErrNotRoCE) {
				t.Error(err)
			}
		}
		b := bytes.Clone(ip)
		copy(b[len(b)-4:], "\x00\x00\x00\x00")
		if err := layers.SetICRC(b); err != nil || !bytes.Equal(b, ip) {
			t.Errorf("%s: %x %v", name, b, err)
		}
	}
	for _, b := range [][]byte{nil, {0x45}, make([]byte, 100), golden(t)["rc-ack"][:47]} {
		if err := layers.SetICRC(b); !errors.Is(err, layers.ErrNotRoCE) {
			t.Errorf("%x: %v", b, err)
		}
	}
}

// UDP's checksum covers the ICRC and is corrected with it.
func TestICRCAndChecksum(t *testing.T) {
	ip := packet(t, &layers.BTH{Opcode: layers.Opcode(roce.OpRCSendOnly), PKey: 0xFFFF, DestQP: 5, PSN: 9, PadCount: 3}, gopacket.Payload("x"), &layers.ICRC{Pad: make([]byte, 3)})
	p := decode(ip)
	if p.ErrorLayer() != nil {
		t.Fatal(p)
	}
	udp := p.Layer(gplayers.LayerTypeUDP).(*gplayers.UDP)
	_ = udp.SetNetworkLayerForChecksum(p.NetworkLayer())
	if err, c := udp.VerifyChecksum(); err != nil || !c.Valid || udp.Checksum == 0 {
		t.Errorf("checksum %#x: %v %+v", udp.Checksum, err, c)
	}
}

func FuzzDecode(f *testing.F) {
	for _, ip := range golden(f) {
		f.Add(ip[len(ip)-min(len(ip), 300):])
		if ip[0]>>4 == 4 {
			f.Add(ip[28:])
		} else {
			f.Add(ip[48:])
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p := gopacket.NewPacket(b, layers.LayerTypeBTH, gopacket.NoCopy)
		_ = p.String()
		if p.ErrorLayer() != nil || p.Metadata().Truncated {
			return
		}
		// Built anew it is the same packet; reserved bits of connection management are not kept.
		again := build(t, p)
		if len(again) != len(b) {
			t.Fatalf("%d bytes, %d when built anew", len(b), len(again))
		}
		if p.Layer(layers.LayerTypeMAD) == nil && !bytes.Equal(again, b) {
			t.Fatalf("built anew\n got %x\nwant %x", again, b)
		}
		q := gopacket.NewPacket(again, layers.LayerTypeBTH, gopacket.NoCopy)
		if q.ErrorLayer() != nil || !bytes.Equal(build(t, q), again) {
			t.Fatalf("not stable: %v", q)
		}
	})
}
