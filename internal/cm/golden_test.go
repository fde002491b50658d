package cm

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// fixed gives the given numbers, one after the other.
func fixed(v ...uint64) func() uint64 {
	return func() uint64 {
		x := v[0]
		if len(v) > 1 {
			v = v[1:]
		}
		return x
	}
}

// A REQ of rdma_cm as Linux 6.12 builds it: communication id 0x11223344, TID 0x0000000511223344, PS_TCP port 7471, rdma_cm port 40000.
func TestWorkedREQ(t *testing.T) {
	want, err := hex.DecodeString(strings.Join(strings.Fields(`
		01070203 00000000 00000005 11223344 00100000 00000000
		11223344 00000000 00000000 01061d2f 000000ff fe000001 00000000 00000000 00001110
		00000010 000000a0 abcdefa7 ffff37f0 ffffffff 00000000 00000000 0000ffff c0000201
		00000000 00000000 0000ffff c0000202 308ef000 00400088 00000000 00000000 00000000
		00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00409c40
		00000000 00000000 00000000 c0000201 00000000 00000000 00000000 c0000202 74657374
		00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000 00000000
		00000000 00000000 00000000 00000000`), ""))
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	r.m = New(Config{Rand: fixed(0x11223344, 0x0000000511223344), CAGUID: guidA})
	_, err = r.m.Connect(1, reqParams())
	r.ok(err)
	if out := r.sent(mad.AttrREQ); !bytes.Equal(out[0].MAD[:], want) {
		t.Fatalf("\n%x\n%x", out[0].MAD, want)
	}

	// Received by another manager it says what it said.
	b := newRig(t)
	b.m = newManager(2, guidB)
	b.listen()
	b.m.Receive(1, addrB, addrA, want)
	e := b.events(EventREQReceived)[0]
	p := *e.Peer
	gidA, gidB := ib.GIDFromAddr(addrA), ib.GIDFromAddr(addrB)
	if p != (Peer{
		Attr: mad.AttrREQ, ServiceID: sidT, CAGUID: guidA, QPN: 0x11, StartingPSN: 0xABCDEF, PathMTU: ib.MTU1024, PKey: 0xFFFF,
		ResponderResources: 16, InitiatorDepth: 16, RetryCount: 7, RNRRetryCount: 7, ACKTimeout: 17,
		LocalGID: gidB, RemoteGID: gidA, Path: Path{FlowLabel: 0x308EF, HopLimit: 64},
	}) {
		t.Fatalf("%+v", p)
	}
	info, user, err := SplitPrivate(e.PrivateData)
	if err != nil || info != (IPInfo{Src: addrA, Dst: addrB, SrcPort: 40000}) || len(user) != 56 || string(user[:5]) != "test\x00" {
		t.Fatal(info, user, err)
	}
}

// Every other message, byte for byte from the tables of the wire format.
func TestMessageBytes(t *testing.T) {
	r := newRig(t)

	// Passive: REP, with everything that it can carry.
	c := r.reach(StateReqRcvd, true)
	r.ok(r.m.Accept(r.now, c, &REPParams{
		QPN: 0x123456, QKey: 0x01020304, SRQ: true, StartingPSN: 0x654321, ResponderResources: 7, InitiatorDepth: 8, FlowControl: true,
		RNRRetryCount: 5, ECE: ECE{VendorID: 0xA1B2C3, Options: 0xD4E5F607}, PrivateData: []byte{0xEE},
	}))
	r.sentIs(newMsg(mad.AttrREP, peerTID).mod(0xD4E5F607).ids(c.localID, peerID).u32(8, 0x01020304).u24(12, 0x123456).at(15, "a1").
		at(19, "b2").u24(20, 0x654321).at(23, "c3").at(24, "0708").at(26, "79").at(27, "b0").u64(28, guidA).at(36, "ee"))
	r.m.Destroy(r.now, c)
	// After REP was sent: "other", both ids.
	r.sentIs(newMsg(mad.AttrREJ, peerTID).ids(c.localID, peerID).at(8, "8000").u16(10, 28))

	r = newRig(t)
	c = r.reach(StateReqRcvd, true)
	r.ok(r.m.Reject(r.now, c, mad.RejectVendorOption, []byte{1, 2, 3}, []byte("no")))
	r.sentIs(newMsg(mad.AttrREJ, peerTID).ids(0, peerID).at(8, "0006").u16(10, 35).at(12, "010203").at(84, "6e6f"))
	r.state(c, StateIdle)

	r = newRig(t)
	c = r.reach(StateReqRcvd, true)
	r.ok(r.m.MRA(r.now, c, 24, []byte("wait")))
	r.sentIs(newMsg(mad.AttrMRA, peerTID).ids(c.localID, peerID).at(8, "00c0").at(10, "77616974"))
	r.ok(r.m.Reject(r.now, c, mad.RejectConsumer, nil, nil))
	r.sentIs(newMsg(mad.AttrREJ, peerTID).ids(c.localID, peerID).u16(10, 28))

	// Active: MRA of a REP, RTU, DREQ, and DREP.
	r = newRig(t)
	c = r.reach(StateRepRcvd, false)
	r.ok(r.m.MRA(r.now, c, 20, nil))
	r.sentIs(newMsg(mad.AttrMRA, c.tid).ids(c.localID, peerID).at(8, "40a0"))
	r.ok(r.m.RTU(r.now, c, []byte("go")))
	r.sentIs(newMsg(mad.AttrRTU, c.tid).ids(c.localID, peerID).at(8, "676f"))
	r.ok(r.m.Disconnect(r.now, c, []byte("bye")))
	tid := mad.Header(c.msg[:]).TID()
	if tid == 0 {
		t.Fatal("TID 0")
	}
	r.sentIs(newMsg(mad.AttrDREQ, tid).ids(c.localID, peerID).u24(8, peerQPN).at(12, "627965"))

	r = newRig(t)
	c = r.reach(StateDreqRcvd, false)
	r.ok(r.m.SendDREP(r.now, c, []byte("ok")))
	r.sentIs(newMsg(mad.AttrDREP, 0x99).ids(c.localID, peerID).at(8, "6f6b"))

	r = newRig(t)
	c = r.reach(StateRepRcvd, false)
	r.m.Destroy(r.now, c)
	r.sentIs(newMsg(mad.AttrREJ, c.tid).ids(c.localID, peerID).at(8, "40").u16(10, 28))

	r = newRig(t)
	c = r.reach(StateReqSent, false)
	r.m.Destroy(r.now, c)
	r.sentIs(newMsg(mad.AttrREJ, c.tid).ids(c.localID, 0).at(8, "8010").u16(10, 4).u64(12, guidA))

	// SIDR.
	r = newRig(t)
	c, err := r.m.SIDRRequest(r.now, &SIDRREQParams{
		Local: addrA, Remote: addrB, ServiceID: 0x01111D2F, ECE: ECE{Options: 9}, IPHeader: true, SrcPort: 40000, PrivateData: []byte("hi"),
	})
	r.ok(err)
	r.sentIs(newMsg(mad.AttrSIDRREQ, c.tid).mod(9).u32(0, c.localID).u16(4, 0xFFFF).u64(8, 0x01111D2F).
		at(16, "0040 9c40 000000000000000000000000c0000201 000000000000000000000000c0000202 6869"))
	r = newRig(t)
	r.listen()
	c = r.reach(StateSidrReqRcvd, true)
	r.ok(r.m.SIDRReply(r.now, c, &SIDRREPParams{
		QPN: 0x123456, QKey: 0x01234567, ECE: ECE{VendorID: 0xA1B2C3, Options: 7}, Info: []byte{9, 8}, PrivateData: []byte("yo"),
	}))
	r.sentIs(newMsg(mad.AttrSIDRREP, peerTID).mod(7).u32(0, peerID).at(4, "00 02 00b2 123456 c3").u64(12, sidT).u32(20, 0x01234567).
		at(24, "0908").at(96, "796f"))
}

// XRC: the initiator's REQ has no responder, the target's number stands in REP where the end-to-end context is.
func TestXRC(t *testing.T) {
	r := newRig(t)
	p := reqParams()
	p.Transport, p.ExtendedTransport, p.SRQ = mad.TransportExtended, mad.ExtendedXRC, true
	c, err := r.m.Connect(r.now, p)
	r.ok(err)
	b := r.sent(mad.AttrREQ)[0].MAD[mad.HeaderLen:]
	if b[35] != 0 || b[39] != 16 || b[43] != 0xA6 || b[47] != 0xA0 || b[50] != 0x30 || b[51] != 0xF1 {
		t.Fatalf("%x", b[:52])
	}
	r.recv(newMsg(mad.AttrREP, c.tid).ids(peerID, c.localID).u24(16, 0x777).u24(20, 5).at(24, "04").at(26, "78").at(27, "f0").u64(28, guidB))
	if e := r.events(EventREPReceived)[0]; e.Peer.QPN != 0x777 || c.QPParams().RemoteQPN != 0x777 || !e.Peer.SRQ {
		t.Fatalf("%+v", e.Peer)
	}

	r = newRig(t)
	r.listen()
	r.recv(peerREQ(peerTID, peerID, peerQPN).at(43, "a6").at(51, "f1"))
	c = r.events(EventREQReceived)[0].Conn
	if c.QPParams().Transport != mad.TransportExtended {
		t.Fatal(c.QPParams())
	}
	r.ok(r.m.Accept(r.now, c, repParams()))
	r.sentIs(newMsg(mad.AttrREP, peerTID).ids(c.localID, peerID).u24(16, ourQPN).u24(20, 0x123456).at(24, "03").at(26, "78").at(27, "d0").
		u64(28, guidA))
	r.recv(newMsg(mad.AttrRTU, peerTID).ids(peerID, c.localID))
	r.events(EventRTUReceived)
	r.m.Destroy(r.now, c) // the target outlives its connection
	r.quiet()
	r.state(c, StateIdle)
}
