package layers_test

import (
	"bytes"
	"encoding/hex"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/gopacket/gopacket"
	gplayers "github.com/gopacket/gopacket/layers"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/layers"
)

// packet builds an IPv4 packet with right checksums and ICRC.
func packet(t testing.TB, list ...gopacket.SerializableLayer) []byte {
	t.Helper()
	ip := &gplayers.IPv4{
		Version: 4, IHL: 5, TTL: 64, Protocol: gplayers.IPProtocolUDP, Flags: gplayers.IPv4DontFragment,
		SrcIP: net.IP{192, 0, 2, 1}, DstIP: net.IP{192, 0, 2, 2},
	}
	udp := &gplayers.UDP{SrcPort: 0xC123, DstPort: layers.Port}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	b := gopacket.NewSerializeBuffer()
	err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, append([]gopacket.SerializableLayer{ip, udp}, list...)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := layers.SetICRC(b.Bytes()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What other dissectors do not know, each as bytes by hand from the standard's
// figures (BTH, headers and payload; the ICRC is checked by CheckICRC).
var hand = []struct {
	name   string
	bytes  string
	layers []gopacket.SerializableLayer
}{
	{
		"XRC SEND ONLY with immediate", "a540ffff 00000011 80123456 00abcdef 12345678 01020304",
		[]gopacket.SerializableLayer{
			&layers.BTH{Opcode: 0xA5, MigReq: true, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0x123456},
			&layers.XRCETH{SRQ: 0xABCDEF}, &layers.ImmDt{Data: 0x12345678},
			gopacket.Payload{1, 2, 3, 4},
		},
	},
	{
		"XRC WRITE FIRST", "a640ffff 00000011 00123456 00abcdef 0102030405060708 11121314 00000008 01020304",
		[]gopacket.SerializableLayer{
			&layers.BTH{Opcode: 0xA6, MigReq: true, PKey: 0xFFFF, DestQP: 0x11, PSN: 0x123456},
			&layers.XRCETH{SRQ: 0xABCDEF}, &layers.RETH{VA: 0x0102030405060708, RKey: 0x11121314, DMALen: 8},
			gopacket.Payload{1, 2, 3, 4},
		},
	},
	{
		"XRC COMPARE SWAP", "b340ffff 00000011 80123456 00abcdef 0102030405060708 11121314 2122232425262728 3132333435363738",
		[]gopacket.SerializableLayer{
			&layers.BTH{Opcode: 0xB3, MigReq: true, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0x123456}, &layers.XRCETH{SRQ: 0xABCDEF},
			&layers.AtomicETH{VA: 0x0102030405060708, RKey: 0x11121314, SwapAdd: 0x2122232425262728, Compare: 0x3132333435363738},
		},
	},
	{
		"XRC SEND ONLY with invalidate", "b740ffff 00000011 80123456 00abcdef 41424344",
		[]gopacket.SerializableLayer{
			&layers.BTH{Opcode: 0xB7, MigReq: true, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0x123456},
			&layers.XRCETH{SRQ: 0xABCDEF}, &layers.IETH{RKey: 0x41424344},
		},
	},
	{
		"XRC ACKNOWLEDGE has no XRCETH", "b140ffff 00000011 00123456 1f000007",
		[]gopacket.SerializableLayer{
			&layers.BTH{Opcode: 0xB1, MigReq: true, PKey: 0xFFFF, DestQP: 0x11, PSN: 0x123456}, &layers.AETH{Syndrome: 0x1F, MSN: 7},
		},
	},
	{
		"FLUSH", "1c40ffff 00000011 80123456 00000013 0102030405060708 11121314 00001000",
		[]gopacket.SerializableLayer{
			&layers.BTH{Opcode: 0x1C, MigReq: true, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0x123456},
			&layers.FETH{Selectivity: 1, Placement: 3}, &layers.RETH{VA: 0x0102030405060708, RKey: 0x11121314, DMALen: 0x1000},
		},
	},
	{
		"XRC FLUSH", "bc40ffff 00000011 80123456 00abcdef 00000002 0102030405060708 11121314 00001000",
		[]gopacket.SerializableLayer{
			&layers.BTH{Opcode: 0xBC, MigReq: true, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0x123456}, &layers.XRCETH{SRQ: 0xABCDEF},
			&layers.FETH{Placement: 2}, &layers.RETH{VA: 0x0102030405060708, RKey: 0x11121314, DMALen: 0x1000},
		},
	},
	{
		"ATOMIC WRITE", "1d40ffff 00000011 80123456 0102030405060708 11121314 00000008 a1a2a3a4a5a6a7a8",
		[]gopacket.SerializableLayer{
			&layers.BTH{Opcode: 0x1D, MigReq: true, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0x123456},
			&layers.RETH{VA: 0x0102030405060708, RKey: 0x11121314, DMALen: 8},
			gopacket.Payload{0xA1, 0xA2, 0xA3, 0xA4, 0xA5, 0xA6, 0xA7, 0xA8},
		},
	},
	{
		"CNP", "8140ffff 40000011 00000000 00000000 00000000 00000000 00000000",
		[]gopacket.SerializableLayer{&layers.BTH{Opcode: 0x81, MigReq: true, PKey: 0xFFFF, BECN: true, DestQP: 0x11}, &layers.CNP{}},
	},
	{
		"RD WRITE ONLY with immediate", "4b00ffff 00000011 80123456 00000009 11111111 00000022 0102030405060708 11121314 00000004 12345678 01020304",
		[]gopacket.SerializableLayer{
			&layers.BTH{Opcode: 0x4B, PKey: 0xFFFF, DestQP: 0x11, AckReq: true, PSN: 0x123456}, &layers.RDETH{EEContext: 9}, &layers.DETH{QKey: 0x11111111, SrcQP: 0x22},
			&layers.RETH{VA: 0x0102030405060708, RKey: 0x11121314, DMALen: 4}, &layers.ImmDt{Data: 0x12345678},
			gopacket.Payload{1, 2, 3, 4},
		},
	},
	{
		"RD ACKNOWLEDGE", "5100ffff 00000011 00123456 00000009 1f000007",
		[]gopacket.SerializableLayer{&layers.BTH{Opcode: 0x51, PKey: 0xFFFF, DestQP: 0x11, PSN: 0x123456}, &layers.RDETH{EEContext: 9}, &layers.AETH{Syndrome: 0x1F, MSN: 7}},
	},
	{
		"reserved bits are kept", "04c37fff ff000011 ff123456 0000000a",
		[]gopacket.SerializableLayer{
			&layers.BTH{Opcode: 4, SolicitedEvent: true, MigReq: true, TVer: 3, PKey: 0x7FFF, FECN: true, BECN: true, Reserved6: 0x3F, DestQP: 0x11, AckReq: true, Reserved7: 0x7F, PSN: 0x123456},
			gopacket.Payload{0, 0, 0, 10},
		},
	},
	{
		"an unknown opcode has payload only", "ff40ffff 00000011 00123456 01020304",
		[]gopacket.SerializableLayer{&layers.BTH{Opcode: 0xFF, MigReq: true, PKey: 0xFFFF, DestQP: 0x11, PSN: 0x123456}, gopacket.Payload{1, 2, 3, 4}},
	},
}

// same compares layers without the bytes that they were decoded from.
func same(t *testing.T, name string, got gopacket.Layer, want any) {
	t.Helper()
	if p, ok := got.(*gopacket.Payload); ok {
		if !bytes.Equal(*p, want.(gopacket.Payload)) {
			t.Errorf("%s: payload %x", name, *p)
		}
		return
	}
	opts := cmp.Options{
		cmpopts.IgnoreTypes(gplayers.BaseLayer{}), cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}),
		cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".extension" }, cmp.Ignore()),
	}
	if d := cmp.Diff(want, any(got), opts); d != "" {
		t.Errorf("%s: (-want +got)\n%s", name, d)
	}
}

func TestByHand(t *testing.T) {
	for _, c := range hand {
		want := unhex(t, c.bytes)
		ip := packet(t, append(c.layers, &layers.ICRC{})...)
		if got := ip[28 : len(ip)-4]; !bytes.Equal(got, want) {
			t.Errorf("%s: built\n got %x\nwant %x", c.name, got, want)
		}
		if ok, err := layers.CheckICRC(ip); !ok || err != nil {
			t.Errorf("%s: ICRC %v %v", c.name, ok, err)
		}
		p := decode(ip)
		if p.ErrorLayer() != nil || len(p.Layers()) != 2+len(c.layers)+1 {
			t.Errorf("%s: %v", c.name, p)
			continue
		}
		for i, l := range c.layers {
			same(t, c.name, p.Layers()[2+i], l)
		}
	}
}

// cm are the messages of connection management with every field set.
func cm() map[layers.MADAttr]gopacket.SerializableLayer {
	gid := func(n byte) ib.GID { return ib.GIDFromAddr(netip.AddrFrom4([4]byte{192, 0, 2, n})) }
	fill := func(n int) []byte { return bytes.Repeat([]byte{0xC5}, n) }
	return map[layers.MADAttr]gopacket.SerializableLayer{
		layers.MADAttrREQ: &layers.CMREQ{
			LocalCommID: 0x11223344, VendorID: 0x15B3, ServiceID: 0x7000000000000001, LocalCAGUID: 3, LocalQKey: 4, LocalQPN: 0x123456, ResponderResources: 16,
			LocalEECN: 5, InitiatorDepth: 15, RemoteEECN: 6, RemoteCMResponseTimeout: 20, TransportService: 3, FlowControl: true, StartingPSN: 0xABCDEF,
			LocalCMResponseTimeout: 19, RetryCount: 7, PKey: 0xFFFF, PathMTU: 3, RDCExists: true, RNRRetryCount: 6, MaxCMRetries: 15, SRQ: true, ExtendedTransport: 1,
			Primary:     layers.CMPath{LocalLID: 0xFFFF, RemoteLID: 0xFFFE, LocalGID: gid(1), RemoteGID: gid(2), FlowLabel: 0x308EF, PacketRate: 0x3F, TrafficClass: 0x28, HopLimit: 64, SL: 5, SubnetLocal: true, LocalACKTimeout: 17},
			Alternate:   layers.CMPath{LocalLID: 1, RemoteLID: 2, LocalGID: gid(3), RemoteGID: gid(4), FlowLabel: 0xFFFFF, PacketRate: 3, HopLimit: 1, LocalACKTimeout: 16, SAPSupported: true},
			PrivateData: fill(92),
		},
		layers.MADAttrMRA: &layers.CMMRA{LocalCommID: 1, RemoteCommID: 2, MessageMRAed: 1, ServiceTimeout: 24, PrivateData: fill(222)},
		layers.MADAttrREJ: &layers.CMREJ{LocalCommID: 1, RemoteCommID: 2, MessageRejected: 2, ARILength: 8, Reason: 28, ARI: fill(72), PrivateData: fill(148)},
		layers.MADAttrREP: &layers.CMREP{
			LocalCommID: 1, RemoteCommID: 2, LocalQKey: 3, LocalQPN: 0x123456, LocalEECN: 4, StartingPSN: 0xABCDEF, ResponderResources: 16, InitiatorDepth: 15,
			TargetACKDelay: 15, FailoverAccepted: 1, FlowControl: true, RNRRetryCount: 7, SRQ: true, LocalCAGUID: 5, PrivateData: fill(196), VendorID: 0xABCDEF,
		},
		layers.MADAttrRTU:     &layers.CMRTU{LocalCommID: 1, RemoteCommID: 2, PrivateData: fill(224)},
		layers.MADAttrDREQ:    &layers.CMDREQ{LocalCommID: 1, RemoteCommID: 2, RemoteQPN: 0x123456, PrivateData: fill(220)},
		layers.MADAttrDREP:    &layers.CMDREP{LocalCommID: 1, RemoteCommID: 2, PrivateData: fill(224)},
		layers.MADAttrSIDRREQ: &layers.CMSIDRREQ{RequestID: 1, PKey: 0xFFFF, ServiceID: 0x7000000000000001, PrivateData: fill(216)},
		layers.MADAttrSIDRREP: &layers.CMSIDRREP{RequestID: 1, Status: 2, InfoLength: 3, QPN: 0x123456, ServiceID: 4, QKey: 5, Info: fill(72), PrivateData: fill(136), VendorID: 0xABCDEF},
		layers.MADAttrLAP: &layers.CMLAP{
			LocalCommID: 1, RemoteCommID: 2, RemoteQPN: 0x123456, RemoteCMResponseTimeout: 20, LocalLID: 3, RemoteLID: 4, LocalGID: gid(1), RemoteGID: gid(2),
			FlowLabel: 0x12345, TrafficClass: 5, HopLimit: 6, PacketRate: 7, SL: 8, SubnetLocal: true, LocalACKTimeout: 9, PrivateData: fill(168),
		},
		layers.MADAttrAPR: &layers.CMAPR{LocalCommID: 1, RemoteCommID: 2, InfoLength: 3, Status: 4, Info: fill(72), PrivateData: fill(148)},
	}
}

func madPacket(t testing.TB, a layers.MADAttr, m gopacket.SerializableLayer) []byte {
	t.Helper()
	return packet(
		t, &layers.BTH{Opcode: 0x64, PKey: 0xFFFF, DestQP: 1}, &layers.DETH{QKey: 0x80010000, SrcQP: 1},
		&layers.MAD{BaseVersion: 1, Class: 7, ClassVersion: 2, Method: 3, TID: 0x0102030405060708, Attr: a, AttrMod: 9}, m, &layers.ICRC{},
	)
}

// Every message of connection management is read as it was written.
func TestCM(t *testing.T) {
	for a, m := range cm() {
		ip := madPacket(t, a, m)
		if len(ip) != 308 {
			t.Errorf("%v: %d bytes", a, len(ip))
		}
		p := decode(ip)
		h, _ := p.Layer(layers.LayerTypeMAD).(*layers.MAD)
		if p.ErrorLayer() != nil || len(p.Layers()) != 7 || h == nil || h.Attr != a || h.TID != 0x0102030405060708 || h.AttrMod != 9 {
			t.Errorf("%v: %v", a, p)
			continue
		}
		same(t, a.String(), p.Layers()[5], m)
		if !bytes.Equal(build(t, p), ip) {
			t.Errorf("%v: built anew it differs", a)
		}
	}
}

// The worked REQ of rdma_cm shows the header that rdma_cm puts into private data,
// and the user's data behind it.
func TestIPCM(t *testing.T) {
	ip := golden(t)["cm-req"]
	p := decode(ip)
	req, _ := p.Layer(layers.LayerTypeCMREQ).(*layers.CMREQ)
	c, _ := p.Layer(layers.LayerTypeIPCM).(*layers.IPCM)
	if req == nil || c == nil {
		t.Fatal(p)
	}
	if req.Primary.FlowLabel != 0x308EF || req.Primary.PacketRate != 0 || req.Primary.HopLimit != 64 || req.LocalQPN != 0x11 || req.StartingPSN != 0xABCDEF || req.PathMTU != 3 {
		t.Errorf("%+v", req)
	}
	if c.IPVersion != 4 || c.SrcPort != 40000 || c.Src != netip.MustParseAddr("192.0.2.1") || c.Dst != netip.MustParseAddr("192.0.2.2") || !bytes.HasPrefix(c.Payload, []byte("test\x00")) {
		t.Errorf("%+v", c)
	}
	if !bytes.Equal(c.Bytes([]byte("test")), req.PrivateData[:40]) {
		t.Errorf("%x", c.Bytes(nil))
	}
}

// Management datagrams of other classes are shown as payload.
func TestOtherMAD(t *testing.T) {
	ip := packet(
		t, &layers.BTH{Opcode: 0x64, PKey: 0xFFFF, DestQP: 1}, &layers.DETH{QKey: 0x80010000, SrcQP: 1},
		&layers.MAD{BaseVersion: 1, Class: 3, ClassVersion: 2, Method: 1, Attr: 0x10}, gopacket.Payload(make([]byte, 232)), &layers.ICRC{},
	)
	p := decode(ip)
	if p.ErrorLayer() != nil || p.Layer(layers.LayerTypeCMREQ) != nil || len(p.ApplicationLayer().Payload()) != 232 {
		t.Error(p)
	}
}
