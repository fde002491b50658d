package dissect

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	gplayers "github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/verbena-rdma/verbena/internal/wire/mad"
	"github.com/verbena-rdma/verbena/layers"
)

// unknownCM lists the messages of which Wireshark 4.0 shows the header only; those
// are checked in packages mad and layers against the tables of the standard. Of a
// REQ it shows flow label and packet rate at the wrong bits (primary and alternate
// path), and it has no field for the vendor id of enhanced connection establishment,
// for the bit that a suggested alternate path would be taken, nor in REP for the
// pieces of the vendor id.
var unknownCM = []mad.AttrID{mad.AttrMRA, mad.AttrSIDRREQ, mad.AttrSIDRREP, mad.AttrLAP, mad.AttrAPR}

// madExpected is what tshark should say of a management datagram.
func madExpected(p *mad.Packet) expect {
	e := newExpect()
	n, h := e.num, p.Hdr
	const m = "infiniband.mad."
	n[m+"baseversion"], n[m+"mgmtclass"], n[m+"classversion"], n[m+"method"] = 1, 7, 2, 3
	n[m+"status"], n[m+"classspecific"], n[m+"transactionid"] = uint64(h.Status()), uint64(h.ClassSpecific()), h.TID()
	n[m+"attributeid"], n[m+"attributemodifier"] = uint64(h.AttrID()), uint64(h.AttrMod())
	d := p.Data
	text := func(name string, b []byte) { e.text[name] = hex.EncodeToString(b) }
	bit := map[bool]uint64{true: 1}
	switch p.Attr {
	case mad.AttrREQ:
		const f = "infiniband.cm.req."
		v := mad.REQ(d)
		n["infiniband.cm.req"] = uint64(v.LocalCommID())
		n[f+"localcaguid"], n[f+"localqkey"], n[f+"localqpn"] = v.LocalCAGUID(), uint64(v.LocalQKey()), uint64(v.LocalQPN())
		n[f+"responderres"], n[f+"localeecn"], n[f+"initdepth"] = uint64(v.ResponderResources()), uint64(v.LocalEECN()), uint64(v.InitiatorDepth())
		n[f+"remoteeecn"], n[f+"remoteresptout"] = uint64(v.RemoteEECN()), uint64(v.RemoteCMResponseTimeout())
		n[f+"transpsvctype"], n[f+"e2eflowctrl"], n[f+"startpsn"] = uint64(v.TransportService()), bit[v.FlowControl()], uint64(v.StartingPSN())
		n[f+"localresptout"], n[f+"retrcount"], n[f+"pkey"] = uint64(v.LocalCMResponseTimeout()), uint64(v.RetryCount()), uint64(v.PKey())
		n[f+"pppmtu"], n[f+"rdcexist"], n[f+"rnrretrcount"] = uint64(v.PathMTU()), bit[v.RDCExists()], uint64(v.RNRRetryCount())
		n[f+"maxcmretr"], n[f+"srq"], n[f+"ext_transport"] = uint64(v.MaxCMRetries()), bit[v.SRQ()], uint64(v.ExtendedTransport())
		for _, x := range []struct {
			name string
			p    mad.Path
		}{{"prim", v.PrimaryPath()}, {"alt", v.AlternatePath()}} {
			g := f + x.name + "_"
			n[g+"locallid"], n[g+"remotelid"] = uint64(x.p.LocalLID()), uint64(x.p.RemoteLID())
			n[g+"tfcclass"], n[g+"hoplim"], n[g+"sl"] = uint64(x.p.TrafficClass()), uint64(x.p.HopLimit()), uint64(x.p.SL())
			n[g+"subnetlocal"], n[g+"localacktout"] = bit[x.p.SubnetLocal()], uint64(x.p.LocalACKTimeout())
		}
		for name, gid := range map[string]netip.Addr{"localgid": v.PrimaryPath().LocalGID().Addr(), "remotegid": v.PrimaryPath().RemoteGID().Addr()} {
			e.text[f+"prim_"+name+"_ipv4"] = gid.String() // by the packet's IP version
		}
		l, r := v.AlternatePath().LocalGID(), v.AlternatePath().RemoteGID()
		text(f+"alt_localgid", l[:])
		text(f+"alt_remotegid", r[:])
		_, port, ok := mad.SplitServiceID(v.ServiceID())
		if n[f+"serviceid"] = v.ServiceID(); !ok {
			text(f+"private", v.PrivateData())
			break
		}
		text(f+"serviceid.prefix", d[8:13])
		n[f+"serviceid.protocol"], n[f+"serviceid.dport"] = uint64(d[13]), uint64(port)
		ip := mad.IPHeader(v.PrivateData())
		n[f+"ip_cm.majv"], n[f+"ip_cm.minv"], n[f+"ip_cm.ipv"], n[f+"ip_cm.sport"] = 0, 0, uint64(ip.IPVersion()), uint64(ip.SrcPort())
		e.text[fmt.Sprintf("%sip_cm.sip%d", f, ip.IPVersion())], e.text[fmt.Sprintf("%sip_cm.dip%d", f, ip.IPVersion())] = ip.Src().String(), ip.Dst().String()
		text(f+"ip_cm.private", v.PrivateData()[mad.IPHeaderLen:])
	case mad.AttrREP:
		const f = "infiniband.cm.rep."
		v := mad.REP(d)
		n["infiniband.cm.rep"], n[f+"remotecommid"] = uint64(v.LocalCommID()), uint64(v.RemoteCommID())
		n[f+"localqkey"], n[f+"localqpn"], n[f+"localeecn"] = uint64(v.LocalQKey()), uint64(v.LocalQPN()), uint64(v.LocalEECN())
		n[f+"startpsn"], n[f+"respres"], n[f+"initdepth"] = uint64(v.StartingPSN()), uint64(v.ResponderResources()), uint64(v.InitiatorDepth())
		n[f+"tgtackdelay"], n[f+"failoveracc"], n[f+"e2eflowctrl"] = uint64(v.TargetACKDelay()), uint64(v.FailoverAccepted()), bit[v.FlowControl()]
		n[f+"rnrretrcount"], n[f+"srq"], n[f+"localcaguid"] = uint64(v.RNRRetryCount()), bit[v.SRQ()], v.LocalCAGUID()
		text(f+"private", v.PrivateData())
	case mad.AttrREJ:
		const f = "infiniband.cm.rej."
		v := mad.REJ(d)
		n[f+"localcommid"], n[f+"remotecommid"], n[f+"msgrej"] = uint64(v.LocalCommID()), uint64(v.RemoteCommID()), uint64(v.MessageRejected())
		n[f+"rejinfolen"], n[f+"reason"] = uint64(v.ARILength()), uint64(v.Reason())
		text(f+"ari", v.ARI())
		text(f+"private", v.PrivateData())
	case mad.AttrRTU, mad.AttrDREP:
		f := "infiniband.cm.rtu."
		if p.Attr == mad.AttrDREP {
			f = "infiniband.cm.drsp."
		}
		v := mad.RTU(d) // DREP has the same layout
		n[f+"localcommid"], n[f+"remotecommid"] = uint64(v.LocalCommID()), uint64(v.RemoteCommID())
		text(f+"private", v.PrivateData())
	case mad.AttrDREQ:
		const f = "infiniband.cm.dreq."
		v := mad.DREQ(d)
		n[f+"localcommid"], n[f+"remotecommid"], n["infiniband.cm.req.remoteqpneecn"] = uint64(v.LocalCommID()), uint64(v.RemoteCommID()), uint64(v.RemoteQPN())
		text(f+"private", v.PrivateData())
	}
	return e
}

// kernelPackets are the management datagrams that two Linux 6.1 kernels exchanged,
// from the golden packets.
func kernelPackets(t *testing.T) (list [][]byte) {
	t.Helper()
	text, err := os.ReadFile("../../internal/wire/roce/testdata/kernel-6.1.hex")
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(text)) {
		name, digits, ok := strings.Cut(strings.TrimSpace(l), ": ")
		if ok && strings.HasPrefix(name, "ipv4-") && strings.Contains(name, "-mad-") {
			b, err := hex.DecodeString(digits)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, b)
		}
	}
	if len(list) == 0 {
		t.Fatal("no management datagrams")
	}
	return list
}

// randomPackets are messages of every kind, each byte of which is drawn, reserved
// ones too. A REQ of rdma_cm has the header that belongs there.
func randomPackets(t *testing.T, rnd *rand.Rand) (list [][]byte) {
	t.Helper()
	for a := mad.AttrREQ; a <= mad.AttrAPR; a++ {
		for i := range 8 {
			b := make([]byte, mad.Len)
			d := mad.Put(b, a, rnd.Uint64())
			mad.Header(b).SetAttrMod(rnd.Uint32())
			for k := range d {
				d[k] = byte(rnd.Uint32())
			}
			if a == mad.AttrREQ {
				v := mad.REQ(d)
				for _, g := range [][]byte{d[56:72], d[72:88]} { // GIDs of IPv4
					copy(g, "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xFF\xFF")
				}
				if v.SetServiceID(0x7000000000000000 | uint64(i)); i%2 == 0 {
					v.SetServiceID(mad.ServiceID(mad.PortSpaceTCP, uint16(rnd.Uint32())))
					src, dst := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
					if i%4 == 0 {
						src, dst = netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
					}
					mad.IPHeader(v.PrivateData()).Put(src, dst, uint16(rnd.Uint32()))
				}
			}
			list = append(list, wrap(t, &layers.BTH{Opcode: 0x64, PKey: 0xFFFF, DestQP: mad.QPN}, &layers.DETH{QKey: mad.QKey, SrcQP: mad.QPN}, gopacket.Payload(b), &layers.ICRC{}))
		}
	}
	return list
}

// Messages of connection management, those of the kernel and drawn ones: tshark
// agrees with package mad on every field that it knows.
func TestDissectCM(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	list := append(kernelPackets(t), randomPackets(t, rand.New(rand.NewPCG(seed, 1)))...)
	file := keep(t, "cm.pcapng")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w, err := pcapgo.NewNgWriter(f, gplayers.LinkTypeRaw)
	if err != nil {
		t.Fatal(err)
	}
	var parsed []mad.Packet
	names := map[string]bool{}
	for _, b := range list {
		if err := w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(b), Length: len(b)}, b); err != nil {
			t.Fatal(err)
		}
		var p mad.Packet
		if err := mad.Parse(b[48:], &p); err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, p)
		e := madExpected(&p)
		for n := range e.num {
			names[n] = true
		}
		for n := range e.text {
			names[n] = true
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	// The list is right: of all other messages there is something to compare.
	for i := range parsed {
		a := parsed[i].Attr
		if more := len(madExpected(&parsed[i]).text) > 0; more == slices.Contains(unknownCM, a) {
			t.Errorf("%v: fields of the message are compared: %v", a, more)
		}
	}
	var fields []string
	for n := range names {
		fields = append(fields, n)
	}
	said := tshark(t, file, fields)
	if len(said) != len(list) {
		t.Fatalf("tshark sees %d packets of %d", len(said), len(list))
	}
	for i := range parsed {
		madExpected(&parsed[i]).compare(t, fmt.Sprintf("packet %d, %v", i, parsed[i].Attr), said[i])
	}
}
