package mad

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// workedREQ is the payload of a REQ as Linux's rdma_cm builds it: TID 0x0000000511223344, PS_TCP port 7471, user data "test".
func workedREQ(t testing.TB) []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(`
		01070203 00000000 00000005 11223344 00100000 00000000
		11223344 00000000 00000000 01061d2f 000000ff fe000001 00000000 00000000 00001110
		00000010 000000a0 abcdefa7 ffff37f0 ffffffff 00000000 00000000 0000ffff c0000201
		00000000 00000000 0000ffff c0000202 308ef000 00400088 00000000 00000000 00000000
		00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00409c40
		00000000 00000000 00000000 c0000201 00000000 00000000 00000000 c0000202 74657374
		00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
		00000000 00000000 00000000 00000000`), ""))
	if err != nil || len(b) != Len {
		t.Fatal(len(b), err)
	}
	return b
}

// The worked REQ: its fields are what they should be, and built from them it is the same bytes.
func TestWorkedREQ(t *testing.T) {
	b := workedREQ(t)
	var p Packet
	if err := Parse(b, &p); err != nil {
		t.Fatal(err)
	}
	src, dst := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	m := REQ(p.Data)
	pri, alt, ip := m.PrimaryPath(), m.AlternatePath(), IPHeader(m.PrivateData())
	for _, c := range []struct {
		name      string
		got, want any
	}{
		{"attribute", p.Attr, AttrREQ},
		{"TID", p.Hdr.TID(), uint64(0x0000000511223344)},
		{"local comm id", m.LocalCommID(), uint32(0x11223344)},
		{"service id", m.ServiceID(), ServiceID(PortSpaceTCP, 7471)},
		{"CA GUID", m.LocalCAGUID(), uint64(0x000000FFFE000001)},
		{"QPN", m.LocalQPN(), uint32(0x11)},
		{"responder resources", m.ResponderResources(), uint8(16)},
		{"initiator depth", m.InitiatorDepth(), uint8(16)},
		{"remote response timeout", m.RemoteCMResponseTimeout(), uint8(20)},
		{"local response timeout", m.LocalCMResponseTimeout(), uint8(20)},
		{"service", m.TransportService(), TransportRC},
		{"PSN", m.StartingPSN(), uint32(0xABCDEF)},
		{"retry count", m.RetryCount(), uint8(7)},
		{"RNR retry count", m.RNRRetryCount(), uint8(7)},
		{"P_Key", m.PKey(), uint16(0xFFFF)},
		{"path MTU", m.PathMTU(), uint8(3)},
		{"CM retries", m.MaxCMRetries(), uint8(15)},
		{"local LID", pri.LocalLID(), uint16(0xFFFF)},
		{"remote LID", pri.RemoteLID(), uint16(0xFFFF)},
		{"local GID", pri.LocalGID(), ib.GIDFromAddr(src)},
		{"remote GID", pri.RemoteGID(), ib.GIDFromAddr(dst)},
		{"flow label", pri.FlowLabel(), uint32(0x308EF)},
		{"packet rate", pri.PacketRate(), uint8(0)},
		{"hop limit", pri.HopLimit(), uint8(64)},
		{"ACK timeout", pri.LocalACKTimeout(), uint8(17)},
		{"alternate LID", alt.LocalLID(), uint16(0)},
		{"IP version", ip.IPVersion(), uint8(4)},
		{"port", ip.SrcPort(), uint16(40000)},
		{"source", ip.Src(), src},
		{"destination", ip.Dst(), dst},
		{"user data", string(m.PrivateData()[IPHeaderLen:][:5]), "test\x00"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}

	n := bytes.Repeat([]byte{0xEE}, Len)
	r := REQ(Put(n, AttrREQ, 0x0000000511223344))
	r.SetLocalCommID(0x11223344)
	r.SetServiceID(ServiceID(PortSpaceTCP, 7471))
	r.SetLocalCAGUID(0x000000FFFE000001)
	r.SetLocalQPN(0x11)
	r.SetResponderResources(16)
	r.SetInitiatorDepth(16)
	r.SetRemoteCMResponseTimeout(20)
	r.SetStartingPSN(0xABCDEF)
	r.SetLocalCMResponseTimeout(20)
	r.SetRetryCount(7)
	r.SetPKey(0xFFFF)
	r.SetPathMTU(3)
	r.SetRNRRetryCount(7)
	r.SetMaxCMRetries(15)
	q := r.PrimaryPath()
	q.SetLocalLID(0xFFFF)
	q.SetRemoteLID(0xFFFF)
	q.SetLocalGID(ib.GIDFromAddr(src))
	q.SetRemoteGID(ib.GIDFromAddr(dst))
	q.SetFlowLabel(0x308EF)
	q.SetHopLimit(64)
	q.SetLocalACKTimeout(17)
	IPHeader(r.PrivateData()).Put(src, dst, 40000)
	copy(r.PrivateData()[IPHeaderLen:], "test")
	if !bytes.Equal(n, b) {
		t.Errorf("built\n got %x\nwant %x", n, b)
	}
}

// Datagrams of every length but one and with every wrong header byte are refused, never read out of bounds.
func TestParseRefuses(t *testing.T) {
	b := workedREQ(t)
	var p Packet
	for n := range b {
		if err := Parse(b[:n], &p); !errors.Is(err, ErrShort) || p.B != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if err := Parse(append(bytes.Clone(b), 1, 2, 3), &p); err != nil || len(p.B) != Len {
		t.Error(err)
	}
	for _, c := range []struct {
		at   int
		v    byte
		want error
	}{
		{0, 0, ErrVersion},
		{0, 2, ErrVersion},
		{1, 3, ErrClass},
		{1, 0x81, ErrClass},
		{2, 1, ErrClass},
		{3, 0x83, ErrClass},
		{17, 0x0F, ErrAttr},
		{17, 0x1B, ErrAttr},
		{16, 1, ErrAttr},
	} {
		bad := bytes.Clone(b)
		bad[c.at] = c.v
		if err := Parse(bad, &p); !errors.Is(err, c.want) || p.Hdr == nil {
			t.Errorf("byte %d = %#x: %v, want %v", c.at, c.v, err, c.want)
		}
	}
	for a := AttrREQ; a <= AttrAPR; a++ {
		data := Put(bad(), a, 7)
		if len(data) != DataLen || cap(data) != DataLen {
			t.Errorf("%v: %d bytes", a, len(data))
		}
	}
}

// kernelCM is the management datagrams of connections between two Linux 6.1 kernels: the payload of the captured packets of package
// roce whose name says mad.
func kernelCM(t testing.TB) map[string][]byte {
	text, err := os.ReadFile("../roce/testdata/kernel-6.1.hex")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		name, digits, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || !strings.Contains(name, "-mad-") {
			continue
		}
		b, err := hex.DecodeString(digits)
		if err != nil || len(b) != 308 {
			t.Fatal(name, len(b), err)
		}
		all[name] = b[20+8+12+8:][:Len]
	}
	if len(all) == 0 {
		t.Fatal("no management datagrams")
	}
	return all
}

// What Linux sends makes sense: both sides name the same ids and queue pairs, and reserved bytes are 0.
func TestKernelCM(t *testing.T) {
	seen := map[AttrID]bool{}
	for name, b := range kernelCM(t) {
		var p Packet
		if err := Parse(b, &p); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		seen[p.Attr] = true
		if p.Hdr.TID() == 0 || p.Hdr.Status() != 0 {
			t.Errorf("%s: TID %#x, status %d", name, p.Hdr.TID(), p.Hdr.Status())
		}
		switch p.Attr {
		case AttrREQ:
			m := REQ(p.Data)
			ip := IPHeader(m.PrivateData())
			space, port, ok := SplitServiceID(m.ServiceID())
			if !ok || space != PortSpaceTCP || port == 0 || m.LocalCommID() == 0 || m.LocalQPN() < 17 || m.LocalCAGUID() == 0 || m.PKey() != 0xFFFF ||
				m.MaxCMRetries() != 15 || m.RemoteCMResponseTimeout() != 20 || m.PrimaryPath().LocalGID().Addr() != ip.Src() ||
				m.PrimaryPath().RemoteGID().Addr() != ip.Dst() || m.AlternatePath().LocalLID() != 0 || m.PrimaryPath().HopLimit() != 64 {
				t.Errorf("%s: %x", name, b)
			}
		case AttrREP:
			m := REP(p.Data)
			if m.LocalCommID() == 0 || m.RemoteCommID() == 0 || m.LocalQPN() < 17 || m.LocalCAGUID() == 0 || m.TargetACKDelay() != 15 || m.VendorID() != 0 {
				t.Errorf("%s: %x", name, b)
			}
		case AttrREJ:
			if m := REJ(p.Data); m.Reason() != RejectConsumer && m.Reason() != RejectBadServiceID {
				t.Errorf("%s: %v, %x", name, m.Reason(), b)
			}
		case AttrDREQ:
			if m := DREQ(p.Data); m.RemoteQPN() < 17 || m.LocalCommID() == 0 || m.RemoteCommID() == 0 {
				t.Errorf("%s: %x", name, b)
			}
		case AttrSIDRREQ:
			if space, port, ok := SplitServiceID(SIDRREQ(p.Data).ServiceID()); !ok || space != PortSpaceUDP || port == 0 {
				t.Errorf("%s: %x", name, b)
			}
		case AttrSIDRREP:
			if m := SIDRREP(p.Data); m.Status() != SIDROK || m.QPN() < 17 || m.QKey() != 0x01234567 {
				t.Errorf("%s: %x", name, b)
			}
		}
	}
	for _, a := range []AttrID{AttrREQ, AttrREJ, AttrREP, AttrRTU, AttrDREQ, AttrDREP, AttrSIDRREQ, AttrSIDRREP} {
		if !seen[a] {
			t.Errorf("no %v was captured", a)
		}
	}
}

func bad() []byte { return bytes.Repeat([]byte{0xEE}, Len+10) }

func TestIPHeader(t *testing.T) {
	b := bytes.Repeat([]byte{0xEE}, IPHeaderLen)
	h := IPHeader(b)
	h.Put(netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"), 0x1234)
	if want := "0060123420010db800000000000000000000000120010db8000000000000000000000002"; hex.EncodeToString(b) != want {
		t.Errorf("%x, want %s", b, want)
	}
	if h.IPVersion() != 6 || h.Src() != netip.MustParseAddr("2001:db8::1") || h.Dst() != netip.MustParseAddr("2001:db8::2") || h.Version() != 0 {
		t.Errorf("%d %v %v", h.IPVersion(), h.Src(), h.Dst())
	}
	h.Put(netip.MustParseAddr("::ffff:192.0.2.1"), netip.MustParseAddr("192.0.2.2"), 1)
	if h.IPVersion() != 4 || h.Src() != netip.MustParseAddr("192.0.2.1") || h[1] != 0x40 || h[3] != 1 {
		t.Errorf("%x", b)
	}
	h.SetVersion(0x12)
	h.SetSrcPort(0xABCD)
	if h.Version() != 0x12 || h.SrcPort() != 0xABCD {
		t.Errorf("%x", b)
	}
}

func TestServiceID(t *testing.T) {
	for _, c := range []struct {
		id          uint64
		space, port uint16
		ok          bool
	}{
		{0x01061d2f, PortSpaceTCP, 7471, true},
		{0x01110001, PortSpaceUDP, 1, true},
		{0x013F0001, PortSpaceIB, 1, true},
		{0x00020001, PortSpaceIPoIB, 1, true},
		{0x101061d2f, PortSpaceTCP, 7471, false},
		{0x02061d2f, 0x0206, 7471, false},
	} {
		space, port, ok := SplitServiceID(c.id)
		if space != c.space || port != c.port || ok != c.ok || ok && ServiceID(space, port) != c.id {
			t.Errorf("%#x: %#x %d %v", c.id, space, port, ok)
		}
	}
}

func TestNames(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{AttrREQ.String(), "REQ"},
		{AttrSIDRREP.String(), "SIDR_REP"},
		{AttrAPR.String(), "APR"},
		{AttrID(1).String(), "AttrID(1)"},
		{RejectConsumer.String(), "consumer reject"},
		{RejectReason(34).String(), "RejectReason(34)"},
		{RejectReason(999).String(), "RejectReason(999)"},
		{RejectVendorOption.String(), "vendor option not supported"},
		{RejectReason(0).String(), "RejectReason(0)"},
		{SIDRRejected.String(), "rejected"},
		{SIDRStatus(6).String(), "SIDRStatus(6)"},
		{TransportUC.String(), "UC"},
		{TransportExtended.String(), "Extended"},
		{MessageREP.String(), "REP"},
		{MessageKind(7).String(), "reserved"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

// No datagram makes a getter fail, and what Parse accepts it does not change.
func FuzzParse(f *testing.F) {
	f.Add(workedREQ(f))
	for _, b := range kernelCM(f) {
		f.Add(b)
	}
	for a := AttrREQ; a <= AttrAPR; a++ {
		b := make([]byte, Len)
		for i := range b {
			b[i] = byte(i * 7)
		}
		copy(b, workedREQ(f)[:HeaderLen])
		Header(b).SetAttrID(a)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		var p Packet
		err := Parse(b, &p)
		if (err == nil) != (p.B != nil && p.Attr >= AttrREQ && p.Attr <= AttrAPR && p.Hdr.BaseVersion() == BaseVersion &&
			p.Hdr.Class() == ClassCM && p.Hdr.ClassVersion() == ClassVersionCM && p.Hdr.Method() == MethodSend) {
			t.Fatalf("%v for %x", err, b)
		}
		if p.B == nil {
			return
		}
		for _, tab := range tables {
			readAll(tab.view, p.Data)
		}
		if h := IPHeader(p.Data[:IPHeaderLen]); !h.Src().IsValid() || !h.Dst().IsValid() {
			t.Fatal("no address")
		}
		_, _, _ = p.Attr.String(), REJ(p.Data).Reason().String(), SIDRREP(p.Data).Status().String()
		if !bytes.Equal(b, before) {
			t.Fatal("reading wrote")
		}
	})
}
