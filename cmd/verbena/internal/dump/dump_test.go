package dump

import (
	"bytes"
	"encoding/hex"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	gplayers "github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// packets are the golden packets by name.
func packets(t *testing.T, names ...string) (list [][]byte) {
	t.Helper()
	all := map[string][]byte{}
	for _, f := range []string{"worked.hex", "kernel-6.1.hex"} {
		text, err := os.ReadFile("../../../../internal/wire/roce/testdata/" + f)
		if err != nil {
			t.Fatal(err)
		}
		for l := range strings.Lines(string(text)) {
			if name, digits, ok := strings.Cut(l, ":"); ok {
				all[name], _ = hex.DecodeString(strings.Join(strings.Fields(digits), ""))
			}
		}
	}
	for _, n := range names {
		if all[n] == nil {
			t.Fatalf("no packet %s", n)
		}
		list = append(list, all[n])
	}
	return list
}

// file is a capture; a packet with direction 0 has none.
func file(t *testing.T, dropped uint64, list [][]byte, dirs ...pcapgo.NgEpbFlag) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := pcapgo.NewNgWriter(&b, gplayers.LinkTypeRaw)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	for i, p := range list {
		var o pcapgo.NgPacketOptions
		if i < len(dirs) {
			o.Flags = &pcapgo.NgEpbFlags{Direction: dirs[i]}
		}
		if err := w.WritePacketWithOptions(gopacket.CaptureInfo{Timestamp: at.Add(time.Duration(i)), CaptureLength: len(p), Length: len(p)}, p, o); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.WriteInterfaceStats(0, pcapgo.NgInterfaceStatistics{PacketsDropped: dropped, PacketsReceived: 7}); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// print1 prints one capture.
func print1(w io.Writer, r io.Reader, c Config) (Summary, error) {
	s, err := Print(w, []Input{{"file", r}}, c)
	if len(s) == 0 {
		return Summary{}, err
	}
	return s[0], err
}

// Packets of several files come in the order of their time, those that are wanted.
func TestMergeAndFilter(t *testing.T) {
	list := packets(t, "rc-send-only", "rc-ack", "cm-req")
	a, b := file(t, 0, list[:2]), file(t, 0, [][]byte{list[2], list[0]})
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "1 RC_SEND_ONLY,2 UD_SEND_ONLY,1 RC_ACKNOWLEDGE,2 RC_SEND_ONLY"},
		{Config{Op: "send"}, "1 RC_SEND_ONLY,2 UD_SEND_ONLY,2 RC_SEND_ONLY"},
		{Config{QPs: []uint32{0x11}}, "1 RC_SEND_ONLY,2 RC_SEND_ONLY"},
		{Config{QPs: []uint32{0x12, 1}, Op: "U"}, "2 UD_SEND_ONLY"},
		{Config{QPs: []uint32{0x12, 0x11}, Count: 2}, "1 RC_SEND_ONLY,1 RC_ACKNOWLEDGE"},
		{Config{QPs: []uint32{5}}, ""},
	} {
		var out bytes.Buffer
		sums, err := Print(&out, []Input{{"a", bytes.NewReader(a)}, {"b", bytes.NewReader(b)}}, c.cfg)
		if err != nil || len(sums) != 2 {
			t.Fatal(sums, err)
		}
		text, ok := strings.CutPrefix(out.String(), "1: a\n2: b\n")
		var got []string
		for l := range strings.Lines(text) {
			f := strings.Fields(l)
			got = append(got, f[0]+" "+f[5])
		}
		if s := strings.Join(got, ","); s != c.want || !ok {
			t.Errorf("%+v: %s, want %s", c.cfg, s, c.want)
		}
	}
}

func TestPrint(t *testing.T) {
	list := packets(t, "rc-send-only", "rc-ack", "rc-send-only-ipv6", "cm-req", "ipv4-RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE", "ipv4-RC_COMPARE_SWAP", "ipv4-RC_SEND_ONLY_WITH_INVALIDATE")
	bad := bytes.Clone(list[0])
	bad[45] ^= 1
	other := []byte{0x45, 0, 0, 20, 0, 0, 0, 0, 64, 1, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1} // ICMP
	list = append(list, bad, other)
	in := file(t, 3, list, pcapgo.NgEpbFlagDirectionOutbound, pcapgo.NgEpbFlagDirectionInbound)
	var out bytes.Buffer
	s, err := print1(&out, bytes.NewReader(in), Config{})
	if err != nil {
		t.Fatal(err)
	}
	if s != (Summary{Packets: 8, Others: 1, Printed: 8, BadICRC: 1, Dropped: 3}) {
		t.Errorf("%+v", s)
	}
	want := `03:04:05.000000006 > 192.0.2.1 -> 192.0.2.2 RC_SEND_ONLY qp=0x11 psn=0x123456 ackreq ipid=4660 len=5
03:04:05.000000007 < 192.0.2.2 -> 192.0.2.1 RC_ACKNOWLEDGE qp=0x12 psn=0x123456 ipid=1 ACK msn=1
03:04:05.000000008   2001:db8::1 -> 2001:db8::2 RC_SEND_ONLY qp=0x11 psn=0x123456 ackreq len=5
03:04:05.000000009   192.0.2.1 -> 192.0.2.2 UD_SEND_ONLY qp=0x1 psn=0x0 ipid=7 srcqp=0x1 qkey=0x80010000 MAD class=0x7 method=0x3 tid=0x511223344 CM REQ id=0x11223344 service=0x1061d2f RC localqp=0x11 startpsn=0xabcdef resources=16 depth=16 from 192.0.2.1 port 40000 to 192.0.2.2
03:04:05.000000010   10.77.0.3 -> 10.77.0.2 RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE qp=0x15 psn=0x12346b ackreq ipid=24162 va=0x2ad9d000 rkey=0x643 dmalen=5 imm=0x12345678 len=5
03:04:05.000000011   10.77.0.3 -> 10.77.0.2 RC_COMPARE_SWAP qp=0x`
	if !strings.HasPrefix(out.String(), want) {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	for _, s := range []string{"invalidate=0x80001", "swapadd=", "len=5 WRONG ICRC\n"} {
		if !strings.Contains(out.String(), s) {
			t.Errorf("%q is not in\n%s", s, out.String())
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 8 {
		t.Errorf("%d lines", n)
	}
	if s, err := print1(io.Discard, bytes.NewReader(in), Config{Count: 2}); err != nil || s.Packets != 2 {
		t.Errorf("%+v %v", s, err)
	}
	out.Reset()
	if _, err := print1(&out, bytes.NewReader(in), Config{Count: 1, Hex: true}); err != nil || !strings.Contains(out.String(), "\t0000  68 65 6c 6c 6f ") || !strings.HasSuffix(out.String(), " hello\n") {
		t.Errorf("%q %v", out.String(), err)
	}
	// The old format.
	out.Reset()
	w := pcapgo.NewWriterNanos(&out)
	if err := w.WriteFileHeader(65535, gplayers.LinkTypeRaw); err != nil {
		t.Fatal(err)
	}
	if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(0, 5), CaptureLength: 50, Length: len(list[0])}, list[0][:50]); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	if s, err := print1(&text, &out, Config{}); err != nil || s.Packets != 1 || !strings.HasSuffix(text.String(), "(50 of 52 bytes)\n") || strings.Contains(text.String(), "ICRC") {
		t.Errorf("%+v %v %s", s, err, text.String())
	}
}

// A file that ends anywhere is printed as far as it goes.
func TestCutShort(t *testing.T) {
	in := file(t, 0, packets(t, "rc-send-only", "rc-ack", "cm-req"))
	whole := 0
	for n := range in {
		var out bytes.Buffer
		s, err := print1(&out, bytes.NewReader(in[:n]), Config{})
		if lines := strings.Count(out.String(), "\n"); lines != s.Packets || s.Packets < whole {
			t.Fatalf("%d bytes: %d lines, %+v, %v", n, lines, s, err)
		}
		whole = s.Packets
	}
	if whole != 3 {
		t.Errorf("%d packets", whole)
	}
	if _, err := print1(io.Discard, strings.NewReader("something else"), Config{}); err == nil || !strings.Contains(err.Error(), "neither pcapng nor pcap") {
		t.Error(err)
	}
}
