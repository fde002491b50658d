// Package cm is the connection management protocol (IBA chapter 12) of one device: messages and time in, messages, events and a
// deadline out. It opens nothing, reads no clock, draws no random numbers of its own and takes no lock: whoever owns the [Manager]
// calls it from one goroutine at a time, and after every call sends what [Manager.Outgoing] returns, handles what [Manager.Events]
// returns, and sees to it that [Manager.Timer] is called at [Manager.Deadline].
//
// # Who does what
//
// The manager knows nothing of queue pairs but their numbers. An event says what has happened; the owner moves queue pairs and
// answers by a call:
//
//	active   Connect -> EventREPReceived -> (RTR, RTS) RTU
//	passive  Listen -> EventREQReceived -> (RTR, RTS) Accept -> EventRTUReceived
//	either   Disconnect -> EventDREPReceived or EventDREQError; EventDREQReceived -> SendDREP; then EventTimewaitExit
//	datagrams  SIDRRequest -> EventSIDRREPReceived; EventSIDRREQReceived -> SIDRReply
//
// The passive queue pair must be in RTS before Accept: the peer may send as soon as it has the REP (and its data may come in before
// its RTU, see [Manager.Established]). [Conn.QPParams] has the attributes that the messages settle.
//
// A connection ends with exactly one of EventREQError, EventREPError, EventREJReceived, EventDREQReceived, EventDREPReceived and
// EventDREQError, unless it is destroyed before; EventTimewaitExit may follow. Events of one connection come in the order in which
// things happened, and none comes after Destroy.
//
// # Where this follows Linux, and where not
//
// The states, the reactions to duplicates and strays, the timers and the values are those of Linux's ib_cm. Different are, on purpose:
//
//   - An MRA is sent only in answer to a second REQ or REP that comes while the application has not decided.
//   - A DREQ that meets our own is answered by a DREP at once: the application has said that it wants to disconnect.
//   - Destroying an established connection repeats the DREQ until it is answered; Linux sends it once.
//   - A connection in TIMEWAIT keeps its (communication id, CA GUID), so that a late second REQ does not open it again, but gives up
//     its (queue pair number, CA GUID): a restarted peer gets through with the next REQ. The number it gives up with the peer's DREQ,
//     whenever the owner answers.
//   - A REQ of a queue pair that has another REQ undecided or unanswered here ends that one: the peer has forgotten it.
//   - A REQ with a known communication id but another queue pair is rejected as a duplicate id (30) and the old connection ended;
//     Linux is silent.
//   - A REP to a request that is not there is rejected (6): whoever sent it would wait for the RTU. Linux is silent.
//   - A REQ with another class version is rejected (31), a SIDR_REQ answered with status 5; Linux drops them.
//   - Duplicates of a SIDR_REQ are told by request id and address, and get the answer that the first one got.
//   - A message counts only if it comes from the address of the connection's peer; a REQ from elsewhere is never one of a peer that is
//     known, whatever GUID and queue pair it names. Linux looks at ids, GUID and number alone.
//   - Codes of timeouts from the peer are capped ([Config].MaxTimeoutCode, MaxTimewaitCode): they reach hours.
//
// # Several processes at one address
//
// Each gives out ids with other fixed bits ([Config].IDMask), by which messages are handed to their process. Whoever gets a message is
// who was asked: it answers what it does not know, so a message must come to one process only, but may be handed to any if its own is
// gone. [Config].Record is told what the others need to end the connections of a process that has died.
//
// # What a flood costs
//
// A REQ costs memory only while it is undecided, and of these there are at most a listener's backlog and [Config].MaxPending in all.
// What comes beyond is dropped and counted, never rejected: the client sends it again. All other answers to strays are made without
// any state.
package cm
