package verbs_test

import (
	"net/netip"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/verbs"
)

// never says why a status does not come from a software device.
var never = map[ib.WCStatus]string{
	ib.WCLocEECOpErr:      "reliable datagrams: end-to-end contexts",
	ib.WCLocRDDViolErr:    "reliable datagrams: domains",
	ib.WCInvEECNErr:       "reliable datagrams: end-to-end contexts",
	ib.WCInvEECStateErr:   "reliable datagrams: end-to-end contexts",
	ib.WCRemAbortErr:      "reliable datagrams: the responder aborted",
	ib.WCFatalErr:         "a device that is lost flushes its work and raises DEVICE_FATAL",
	ib.WCRespTimeoutErr:   "reliable datagrams: the responder is silent",
	ib.WCGeneralErr:       "there is no error without a name",
	ib.WCTMErr:            "tag matching",
	ib.WCTMRndvIncomplete: "tag matching",
}

// ending is how work ends: the queue that tells and the status.
type ending func(r *rig) *verbs.CQ

// endings bring about each status that a software device has.
var endings = map[ib.WCStatus]ending{
	ib.WCSuccess: func(r *rig) *verbs.CQ {
		qa, qb := r.pair(ib.RC)
		r.recv(qb, 1)
		r.signal(qa, verbs.SendWR{Opcode: ib.WRSend})
		return r.a.cq
	},
	// A datagram longer than the port's MTU (IBA 9.8.4).
	ib.WCLocLenErr: func(r *rig) *verbs.CQ {
		qa, qb := r.pair(ib.UD)
		ah := ok(r.a.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), PortNum: 1}))(r.t)
		r.a.later(ah.Destroy)
		m := r.a.mem(2000)
		r.signal(qa, verbs.SendWR{
			Opcode: ib.WRSend, AH: ah, RemoteQPN: qb.Num(), RemoteQKey: qkey, SGList: []verbs.SGE{m.SGE(0, 2000)},
		})
		return r.a.cq
	},
	// An address handle that was destroyed before its request was sent, while the
	// queue pair rested.
	ib.WCLocQPOpErr: func(r *rig) *verbs.CQ {
		qa, qb := r.pair(ib.UD)
		ah := ok(r.a.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.b.addr), PortNum: 1}))(r.t)
		r.must(qa.Modify(&ib.QPAttr{QPState: ib.QPStateSQD}, ib.QPAttrState))
		r.signal(qa, verbs.SendWR{Opcode: ib.WRSend, AH: ah, RemoteQPN: qb.Num(), RemoteQKey: qkey})
		r.must(ah.Destroy())
		r.must(qa.Modify(&ib.QPAttr{QPState: ib.QPStateRTS}, ib.QPAttrState))
		return r.a.cq
	},
	ib.WCLocProtErr: func(r *rig) *verbs.CQ {
		qa, _ := r.pair(ib.RC)
		r.signal(qa, verbs.SendWR{Opcode: ib.WRSend, SGList: []verbs.SGE{{Addr: 0x1000, Length: 8, LKey: 0x12345678}}})
		return r.a.cq
	},
	ib.WCWRFlushErr: func(r *rig) *verbs.CQ {
		qa, _ := r.pair(ib.RC)
		r.must(qa.Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState))
		r.signal(qa, verbs.SendWR{Opcode: ib.WRSend})
		return r.a.cq
	},
	// A window on a region that does not allow it (IBA 11.4.1.1).
	ib.WCMWBindErr: func(r *rig) *verbs.CQ {
		qa, _ := r.pair(ib.RC)
		m := r.a.mem(64)
		w := ok(r.a.pd.AllocMW(ib.MWType2))(r.t)
		r.a.later(w.Dealloc)
		r.signal(qa, verbs.SendWR{Opcode: ib.WRBindMW, RKey: ib.IncRKey(w.RKey()), Bind: &verbs.BindInfo{
			MW: w, MR: m, Addr: m.Addr(), Length: 64, Access: ib.AccessRemoteRead,
		}})
		return r.a.cq
	},
	ib.WCBadRespErr: func(r *rig) *verbs.CQ {
		_, qb := r.pair(ib.RC)
		r.net.Filter(simnet.Every(isOp(roce.OpRCSendOnly), simnet.Drop))
		r.signal(qb, verbs.SendWR{Opcode: ib.WRSend})
		r.inject(r.packet(r.a.addr, qb, roce.OpRCReadRespOnly, 4, nil))
		return r.b.cq
	},
	// A WRITE with immediate data to where it must not go: its receive request.
	ib.WCLocAccessErr: func(r *rig) *verbs.CQ {
		qa, qb := r.pair(ib.RC)
		r.recv(qb, 1)
		m := r.a.mem(8)
		r.signal(qa, verbs.SendWR{Opcode: ib.WRRDMAWriteWithImm, RKey: 0x12345678, SGList: []verbs.SGE{m.SGE(0, 8)}})
		return r.b.cq
	},
	// A message longer than the receive request.
	ib.WCRemInvReqErr: func(r *rig) *verbs.CQ {
		qa, qb := r.pair(ib.RC)
		r.recv(qb, 1)
		m := r.a.mem(65)
		r.signal(qa, verbs.SendWR{Opcode: ib.WRSend, SGList: []verbs.SGE{m.SGE(0, 65)}})
		return r.a.cq
	},
	ib.WCRemAccessErr: func(r *rig) *verbs.CQ {
		qa, _ := r.pair(ib.RC)
		m := r.a.mem(8)
		r.signal(qa, verbs.SendWR{Opcode: ib.WRRDMARead, RKey: 0x12345678, SGList: []verbs.SGE{m.SGE(0, 8)}})
		return r.a.cq
	},
	// A receive request whose own key is bad.
	ib.WCRemOpErr: func(r *rig) *verbs.CQ {
		qa, qb := r.pair(ib.RC)
		r.must(qb.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{{Addr: 0x1000, Length: 64, LKey: 0x12345678}}}))
		m := r.a.mem(8)
		r.signal(qa, verbs.SendWR{Opcode: ib.WRSend, SGList: []verbs.SGE{m.SGE(0, 8)}})
		return r.a.cq
	},
	// An XRC request that a peer refuses with the NAK of reliable datagrams, as
	// hardware may do for a receive queue that is not there. Our own peer calls that
	// an invalid request.
	ib.WCRemInvRDReqErr: func(r *rig) *verbs.CQ {
		ini, _ := r.xrc(r.b.xrcd(verbs.XRCDInitAttr{}))
		r.net.Filter(func(*simnet.Event) simnet.Verdict { return simnet.Drop })
		r.signal(ini, verbs.SendWR{Opcode: ib.WRSend, RemoteSRQN: 0x123456})
		b := make([]byte, roce.BTHLen+roce.AETHLen+roce.ICRCLen)
		roce.BTH(b).Put(roce.OpXRCAcknowledge, false, 0, uint16(ib.PKeyDefault), uint32(ini.Num()), false, firstPSN)
		roce.AETH(b[roce.BTHLen:]).Put(roce.NAKInvRDReq, 0)
		p := roce.NewPath(r.b.addr, r.a.addr, 0xC000)
		roce.PutICRC(b[len(b)-roce.ICRCLen:], p.Compute(b, 0))
		r.net.Inject(netip.AddrPortFrom(r.b.addr, 0xC000), r.a.addr, b, 0)
		return r.a.cq
	},
	ib.WCRetryExcErr: func(r *rig) *verbs.CQ {
		qa, _ := r.pair(ib.RC)
		r.net.Filter(simnet.Every(isOp(roce.OpRCSendOnly), simnet.Drop))
		r.signal(qa, verbs.SendWR{Opcode: ib.WRSend})
		return r.a.cq
	},
	ib.WCRNRRetryExcErr: func(r *rig) *verbs.CQ {
		qa, _ := r.pair(ib.RC)
		r.signal(qa, verbs.SendWR{Opcode: ib.WRSend})
		return r.a.cq
	},
}

// Every status there is: brought about through the API, or never, for a reason.
func TestEveryStatus(t *testing.T) {
	if s := (ib.WCTMRndvIncomplete + 1).Name(); s != "WCStatus(24)" {
		t.Errorf("there is a status %q that this test does not know", s)
	}
	for st := ib.WCSuccess; st <= ib.WCTMRndvIncomplete; st++ {
		t.Run(st.Name(), func(t *testing.T) {
			end := endings[st]
			if why := never[st]; why != "" {
				if end != nil {
					t.Fatal("brought about all the same")
				}
				t.Skip(why)
			}
			r := newRig(t, 1500)
			cq := end(r)
			wc := r.wcs(cq, 1)[0]
			if wc.Status != st {
				t.Errorf("%v, want %v", wc.Status, st)
			}
			r.settle()
		})
	}
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// signal posts a send request that completes.
func (r *rig) signal(q *verbs.QP, wr verbs.SendWR) {
	r.t.Helper()
	wr.Flags |= ib.SendSignaled
	r.must(q.PostSend([]verbs.SendWR{wr}))
}
