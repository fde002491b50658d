package dissect

import (
	"encoding/hex"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	gplayers "github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/layers"
)

// The list of what Wireshark does not know is true of 4.0: it does not show what
// our layers show. A newer one that knows more makes the list shorter.
func TestUnknownToWireshark(t *testing.T) {
	if v, err := exec.Command("tshark", "--version").Output(); err == nil && !strings.Contains(string(v), " 4.0.") {
		t.Skipf("the list is of Wireshark 4.0, this is %.40s", v)
	}
	list := []struct {
		op     roce.Opcode
		packet string // from the BTH on, without ICRC
		field  string // that would be there
	}{
		{roce.OpXRCSendOnlyImm, "a540ffff 00000011 80123456 00abcdef 12345678 01020304", "infiniband.immdt"},
		{roce.OpXRCWriteFirst, "a640ffff 00000011 00123456 00abcdef 0102030405060708 11121314 00000008 01020304", "infiniband.reth.r_key"},
		{roce.OpXRCFlush, "bc40ffff 00000011 80123456 00abcdef 00000002 0102030405060708 11121314 00001000", "infiniband.reth.va"},
		{roce.OpRCFlush, "1c40ffff 00000011 80123456 00000013 0102030405060708 11121314 00001000", "infiniband.reth.va"},
		{roce.OpRCAtomicWrite, "1d40ffff 00000011 80123456 0102030405060708 11121314 00000008 a1a2a3a4a5a6a7a8", "infiniband.reth.va"},
		{roce.OpCNP, "8140ffff 40000011 00000000 00000000 00000000 00000000 00000000", "infiniband.reth.va"},
	}
	file := keep(t, "unknown.pcapng")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w, err := pcapgo.NewNgWriter(f, gplayers.LinkTypeRaw)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		if !isUnknown(c.op) {
			t.Errorf("%v is not in the list", c.op)
		}
		b, err := hex.DecodeString(strings.ReplaceAll(c.packet, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		ip := wrap(t, gopacket.Payload(append(b, 0, 0, 0, 0)))
		if err := w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(ip), Length: len(ip)}, ip); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	fields := []string{"infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.immdt", "infiniband.reth.va", "infiniband.reth.r_key"}
	said := tshark(t, file, fields)
	if len(said) != len(list) {
		t.Fatalf("%d packets of %d", len(said), len(list))
	}
	for i, c := range list {
		if n, err := number(said[i]["infiniband.bth.opcode"]); err != nil || roce.Opcode(n) != c.op {
			t.Errorf("%v: %v", c.op, said[i])
		}
		if v, ok := said[i][c.field]; ok {
			t.Logf("%v: %s = %s: Wireshark knows it after all", c.op, c.field, v)
			t.Errorf("%v: take it from the list", c.op)
		}
	}
}

// wrap puts layers into an IPv4 packet with right checksums and ICRC.
func wrap(t *testing.T, list ...gopacket.SerializableLayer) []byte {
	t.Helper()
	ip := &gplayers.IPv4{
		Version: 4, IHL: 5, TTL: 64, Protocol: gplayers.IPProtocolUDP, Flags: gplayers.IPv4DontFragment,
		SrcIP: []byte{192, 0, 2, 1}, DstIP: []byte{192, 0, 2, 2},
	}
	udp := &gplayers.UDP{SrcPort: 0xD872, DstPort: layers.Port}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	all := append([]gopacket.SerializableLayer{ip, udp}, list...)
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, all...); err != nil {
		t.Fatal(err)
	}
	if err := layers.SetICRC(buf.Bytes()); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
