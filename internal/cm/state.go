package cm

import "strconv"

// State is where a connection stands (IBA 12.9.5; the names are those of Linux's ib_cm).
type State uint8

// States. A passive connection begins in StateReqRcvd or StateSidrReqRcvd, an active one in StateReqSent or StateSidrReqSent.
const (
	StateIdle        State = iota // over: rejected, timed out, destroyed, TIMEWAIT passed
	StateListen                   // a Listener
	StateReqSent                  // REQ sent, nothing heard
	StateReqRcvd                  // REQ received, the application decides
	StateMRAReqSent               // the same, and an MRA was sent
	StateMRAReqRcvd               // REQ sent, MRA received
	StateRepSent                  // REP sent, nothing heard
	StateRepRcvd                  // REP received, the application decides
	StateMRARepSent               // the same, and an MRA was sent
	StateMRARepRcvd               // REP sent, MRA received
	StateEstablished              // RTU sent or received
	StateDreqSent                 // DREQ sent, nothing heard
	StateDreqRcvd                 // DREQ received, not answered
	StateTimewait                 // over, but its messages may still be on their way
	StateSidrReqSent              // SIDR_REQ sent
	StateSidrReqRcvd              // SIDR_REQ received, the application decides
)

var stateNames = [...]string{
	"IDLE", "LISTEN", "REQ_SENT", "REQ_RCVD", "MRA_REQ_SENT", "MRA_REQ_RCVD", "REP_SENT", "REP_RCVD", "MRA_REP_SENT",
	"MRA_REP_RCVD", "ESTABLISHED", "DREQ_SENT", "DREQ_RCVD", "TIMEWAIT", "SIDR_REQ_SENT", "SIDR_REQ_RCVD",
}

// String returns the name of the state, or State(n).
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "State(" + strconv.Itoa(int(s)) + ")"
}

// undecided reports whether a passive connection waits for the application's answer.
func (s State) undecided() bool {
	return s == StateReqRcvd || s == StateMRAReqSent || s == StateSidrReqRcvd
}

// EventKind says what has happened.
type EventKind uint8

// Kinds of events.
const (
	EventREQReceived     EventKind = iota + 1 // a REQ came for a listener: Accept or Reject the new connection
	EventREQError                             // the REQ was not answered; the connection is idle
	EventREPReceived                          // accepted: RTU or Reject
	EventREPError                             // the REP was not answered; the connection is idle
	EventRTUReceived                          // established, by an RTU or by Established
	EventREJReceived                          // rejected, in any state: see Reason
	EventDREQReceived                         // the peer disconnects: SendDREP, or Destroy
	EventDREPReceived                         // the peer has answered the DREQ, which Disconnect or a stale connection had caused
	EventDREQError                            // the DREQ was not answered
	EventTimewaitExit                         // TIMEWAIT is over
	EventSIDRREQReceived                      // a SIDR_REQ came for a listener: SIDRReply
	EventSIDRREPReceived                      // the answer to SIDRRequest: see SIDRStatus
	EventSIDRREQError                         // the SIDR_REQ was not answered
)

var eventNames = [...]string{
	"", "REQ_RECEIVED", "REQ_ERROR", "REP_RECEIVED", "REP_ERROR", "RTU_RECEIVED", "REJ_RECEIVED", "DREQ_RECEIVED", "DREP_RECEIVED",
	"DREQ_ERROR", "TIMEWAIT_EXIT", "SIDR_REQ_RECEIVED", "SIDR_REP_RECEIVED", "SIDR_REQ_ERROR",
}

// String returns the name of the kind, or EventKind(n).
func (k EventKind) String() string {
	if k > 0 && int(k) < len(eventNames) {
		return eventNames[k]
	}
	return "EventKind(" + strconv.Itoa(int(k)) + ")"
}
