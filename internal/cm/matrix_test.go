package cm

import (
	"fmt"
	"testing"

	"github.com/verbena-rdma/verbena/internal/wire/mad"
)

// does is what a message causes: the next state, an answer, an event. Its zero value is nothing at all.
type does struct {
	next  State
	reply mad.AttrID
	event EventKind
}

// strays are the messages of the matrix, each as it belongs to the connection (communication ids, queue pair numbers).
var strays = map[string]func(c *Conn) *msg{
	"REQ":     func(*Conn) *msg { return peerREQ(peerTID, peerID, peerQPN) },
	"REP":     func(c *Conn) *msg { return peerREP(c.tid, peerID, c.localID, peerQPN) },
	"RTU":     func(c *Conn) *msg { return newMsg(mad.AttrRTU, c.tid).ids(peerID, c.localID) },
	"MRA/REQ": func(c *Conn) *msg { return newMsg(mad.AttrMRA, c.tid).ids(peerID, c.localID).at(8, "00c0") },
	"MRA/REP": func(c *Conn) *msg { return newMsg(mad.AttrMRA, c.tid).ids(peerID, c.localID).at(8, "40c0") },
	"MRA/LAP": func(c *Conn) *msg { return newMsg(mad.AttrMRA, c.tid).ids(peerID, c.localID).at(8, "80c0") },
	// A REQ is rejected by our id alone, everything else by both.
	"REJ/REQ":       func(c *Conn) *msg { return newMsg(mad.AttrREJ, c.tid).ids(0, c.localID).u16(10, 28) },
	"REJ/REQ stale": func(c *Conn) *msg { return newMsg(mad.AttrREJ, c.tid).ids(0, c.localID).u16(10, 10) },
	"REJ/REP":       func(c *Conn) *msg { return newMsg(mad.AttrREJ, c.tid).ids(peerID, c.localID).at(8, "40").u16(10, 28) },
	"REJ/REP stale": func(c *Conn) *msg { return newMsg(mad.AttrREJ, c.tid).ids(peerID, c.localID).at(8, "40").u16(10, 10) },
	"REJ/other":     func(c *Conn) *msg { return newMsg(mad.AttrREJ, c.tid).ids(peerID, c.localID).at(8, "80").u16(10, 28) },
	// By the peer's id and GUID, whatever else it says.
	"REJ/timeout": func(*Conn) *msg { return newMsg(mad.AttrREJ, 7).ids(peerID, 0).at(8, "8010").u16(10, 4).u64(12, guidB) },
	"REJ/no ARI":  func(*Conn) *msg { return newMsg(mad.AttrREJ, 7).ids(peerID, 0).at(8, "8000").u16(10, 4).u64(12, guidB) },
	"DREQ":        func(c *Conn) *msg { return newMsg(mad.AttrDREQ, 0x77).ids(peerID, c.localID).u24(8, ourQPN) },
	"DREQ/qpn":    func(c *Conn) *msg { return newMsg(mad.AttrDREQ, 0x77).ids(peerID, c.localID).u24(8, ourQPN+1) },
	"DREP":        func(c *Conn) *msg { return newMsg(mad.AttrDREP, 0x77).ids(peerID, c.localID) },
	"SIDR_REP":    func(c *Conn) *msg { return newMsg(mad.AttrSIDRREP, 7).u32(0, c.localID) },
	"LAP":         func(c *Conn) *msg { return newMsg(mad.AttrLAP, 7).ids(peerID, c.localID) },
	"APR":         func(c *Conn) *msg { return newMsg(mad.AttrAPR, 7).ids(peerID, c.localID) },
}

// matrix says what happens in each state; what is not listed changes nothing, sends nothing and tells nothing.
func matrix() map[string]map[string]does {
	rejected := func(s State) does { return does{s, 0, EventREJReceived} }
	unheard := map[string]does{ // the peer's id is not known
		"REP":     {StateRepRcvd, 0, EventREPReceived},
		"MRA/REQ": {StateMRAReqRcvd, 0, 0},
		"REJ/REQ": rejected(StateIdle), "REJ/REQ stale": rejected(StateTimewait),
		"DREQ": {StateReqSent, mad.AttrDREP, 0}, "DREQ/qpn": {StateReqSent, mad.AttrDREP, 0},
	}
	heard := func(next, stale State) map[string]does {
		return map[string]does{
			"REJ/REP": rejected(next), "REJ/REP stale": rejected(stale), "REJ/other": rejected(next), "REJ/timeout": rejected(next),
		}
	}
	with := func(base map[string]does, more map[string]does) map[string]does {
		m := map[string]does{}
		for k, v := range base {
			m[k] = v
		}
		for k, v := range more {
			m[k] = v
		}
		return m
	}
	passive, over := heard(StateIdle, StateTimewait), heard(StateTimewait, StateTimewait)
	disconnected := does{StateDreqRcvd, 0, EventDREQReceived}
	rep := map[string]does{"RTU": {StateEstablished, 0, EventRTUReceived}, "DREQ": disconnected, "MRA/REP": {StateMRARepRcvd, 0, 0}}
	dreqSent := with(over, map[string]does{
		"DREQ": {StateTimewait, mad.AttrDREP, EventDREQReceived}, "DREP": {StateTimewait, 0, EventDREPReceived},
	})
	dreqRcvd := map[string]does{"DREP": {StateTimewait, 0, 0}}
	timewait := map[string]does{"REQ": {StateTimewait, mad.AttrREJ, 0}, "DREQ": {StateTimewait, mad.AttrDREP, 0}}
	noConn := func(s State) map[string]does {
		return map[string]does{"DREQ": {s, mad.AttrDREP, 0}, "DREQ/qpn": {s, mad.AttrDREP, 0}, "REP": {s, mad.AttrREJ, 0}}
	}
	return map[string]map[string]does{
		"active REQ_SENT": unheard,
		"active MRA_REQ_RCVD": with(unheard, map[string]does{
			"MRA/REQ": {}, "DREQ": {StateMRAReqRcvd, mad.AttrDREP, 0}, "DREQ/qpn": {StateMRAReqRcvd, mad.AttrDREP, 0},
		}),
		"active REP_RCVD":     with(over, map[string]does{"REP": {StateMRARepSent, mad.AttrMRA, 0}}),
		"active MRA_REP_SENT": with(over, map[string]does{"REP": {StateMRARepSent, mad.AttrMRA, 0}}),
		"active ESTABLISHED":  with(over, map[string]does{"REP": {StateEstablished, mad.AttrRTU, 0}, "DREQ": disconnected}),
		"active DREQ_SENT":    dreqSent, "active DREQ_RCVD": dreqRcvd, "active TIMEWAIT": timewait,

		// The queue pair's number is not known before the REP: a DREQ cannot name it.
		"passive REQ_RCVD":     with(passive, map[string]does{"REQ": {StateMRAReqSent, mad.AttrMRA, 0}}),
		"passive MRA_REQ_SENT": with(passive, map[string]does{"REQ": {StateMRAReqSent, mad.AttrMRA, 0}}),
		"passive REP_SENT":     with(passive, rep),
		"passive MRA_REP_RCVD": with(with(passive, rep), map[string]does{"MRA/REP": {}}),
		"passive ESTABLISHED":  with(over, map[string]does{"DREQ": disconnected}),
		"passive DREQ_SENT":    dreqSent, "passive DREQ_RCVD": dreqRcvd, "passive TIMEWAIT": timewait,

		"active SIDR_REQ_SENT":  with(noConn(StateSidrReqSent), map[string]does{"REP": {}, "SIDR_REP": {StateIdle, 0, EventSIDRREPReceived}}),
		"passive SIDR_REQ_RCVD": noConn(StateSidrReqRcvd),
		"active IDLE":           noConn(StateIdle), "passive IDLE": noConn(StateIdle),
	}
}

// Every message in every state.
func TestEveryMessageInEveryState(t *testing.T) {
	cells := 0
	for row, expected := range matrix() {
		for name, build := range strays {
			var s State
			passive := row[:7] == "passive"
			for i, n := range stateNames {
				if row == "active "+n || row == "passive "+n {
					s = State(i)
				}
			}
			unknown := s == StateReqSent || s == StateMRAReqRcvd || s == StateSidrReqSent || s == StateSidrReqRcvd || s == StateIdle
			if name == "REQ" && unknown {
				continue // belongs to no connection: a new one
			}
			cells++
			t.Run(row+"/"+name, func(t *testing.T) {
				r := newRig(t)
				r.listen()
				c := r.reach(s, passive)
				want, listed := expected[name]
				if !listed || want == (does{}) {
					want = does{next: s}
				}
				received := r.m.counters.RxMsgs
				r.recv(build(c))
				if r.m.counters.RxMsgs == received {
					t.Error("not counted")
				}
				r.state(c, want.next)
				if want.reply != 0 {
					r.sent(want.reply)
				} else {
					r.sent()
				}
				if want.event != 0 {
					if e := r.events(want.event)[0]; e.Conn != c || len(e.PrivateData) == 0 {
						t.Errorf("%+v", e)
					}
				} else {
					r.events()
				}
				// A deadline exists exactly where something is repeated or waited for.
				timed := map[State]bool{
					StateReqSent: true, StateMRAReqRcvd: true, StateRepSent: true, StateMRARepRcvd: true, StateDreqSent: true,
					StateTimewait: true, StateSidrReqSent: true,
				}[c.State()]
				if (r.m.Deadline() != 0) != timed {
					t.Errorf("deadline %d in %v", r.m.Deadline(), c.State())
				}
			})
		}
	}
	if t.Failed() {
		return
	}
	t.Log(cells, "cells")
}

// What an owner may call, state by state: everything else is EINVAL and changes nothing.
func TestEveryCallInEveryState(t *testing.T) {
	type call struct {
		name string
		do   func(r *rig, c *Conn) error
		ok   map[State]State
	}
	calls := []call{
		{"Accept", func(r *rig, c *Conn) error { return r.m.Accept(r.now, c, repParams()) }, map[State]State{
			StateReqRcvd: StateRepSent, StateMRAReqSent: StateRepSent,
		}},
		{"Reject", func(r *rig, c *Conn) error { return r.m.Reject(r.now, c, mad.RejectConsumer, nil, nil) }, map[State]State{
			StateReqSent: StateIdle, StateMRAReqRcvd: StateIdle, StateReqRcvd: StateIdle, StateMRAReqSent: StateIdle,
			StateRepRcvd: StateIdle, StateMRARepSent: StateIdle, StateRepSent: StateTimewait, StateMRARepRcvd: StateTimewait,
		}},
		{"RTU", func(r *rig, c *Conn) error { return r.m.RTU(r.now, c, nil) }, map[State]State{
			StateRepRcvd: StateEstablished, StateMRARepSent: StateEstablished,
		}},
		{"Established", func(r *rig, c *Conn) error { return r.m.Established(r.now, c) }, map[State]State{
			StateRepSent: StateEstablished, StateMRARepRcvd: StateEstablished,
		}},
		{"MRA", func(r *rig, c *Conn) error { return r.m.MRA(r.now, c, 20, nil) }, map[State]State{
			StateReqRcvd: StateMRAReqSent, StateMRAReqSent: StateMRAReqSent, StateRepRcvd: StateMRARepSent, StateMRARepSent: StateMRARepSent,
		}},
		{"Disconnect", func(r *rig, c *Conn) error { return r.m.Disconnect(r.now, c, nil) }, map[State]State{StateEstablished: StateDreqSent}},
		{"SendDREP", func(r *rig, c *Conn) error { return r.m.SendDREP(r.now, c, nil) }, map[State]State{StateDreqRcvd: StateTimewait}},
		{"SIDRReply", func(r *rig, c *Conn) error { return r.m.SIDRReply(r.now, c, &SIDRREPParams{}) }, map[State]State{StateSidrReqRcvd: StateIdle}},
	}
	for s := StateReqSent; s <= StateSidrReqRcvd; s++ {
		passive := s == StateReqRcvd || s == StateMRAReqSent || s == StateRepSent || s == StateMRARepRcvd || s == StateSidrReqRcvd
		for _, k := range calls {
			t.Run(fmt.Sprint(s, "/", k.name), func(t *testing.T) {
				r := newRig(t)
				r.listen()
				c := r.reach(s, passive)
				err := k.do(r, c)
				next, ok := k.ok[s]
				if !ok {
					isErrno(t, err, einval)
					r.state(c, s)
					r.quiet()
					return
				}
				r.ok(err)
				r.state(c, next)
			})
		}
	}
}
