// Package rdmacm connects queue pairs by IP address and port: librdmacm in Go, on
// the wire with Linux's rdma_cm. Every call of rdma_cma.h is here, with its meaning
// and its errors.
//
// A [Manager] has what librdmacm keeps for a process: the devices, the ports in use
// and the connections. Programs make one, usually by package rdma, which knows the
// providers and the environment.
//
//	m := rdmacm.NewManager()
//	defer m.Close()
//	ai, err := rdmacm.GetAddrInfo(ctx, "192.0.2.1", "7471", nil)
//	...
//	id, err := m.CreateEP(ctx, ai, nil, &verbs.QPInitAttr{Cap: ib.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1}})
//	...
//	defer id.DestroyEP(ctx)
//	... post receives ...
//	err = id.Connect(ctx, nil)
//
// # Synchronous and asynchronous
//
// An [ID] made with an [EventChannel] is asynchronous, as in C: calls that take
// time return when they have begun, and an [Event] on the channel tells how they
// ended. Each event that was got is to be acknowledged with [Event.Ack]:
// [ID.Destroy] and [ID.Migrate] wait for that. An ID without a channel is
// synchronous: these calls wait, for as long as their context allows, and return
// the outcome; [ID.Event] is then the event that told, until the next such call.
// When the context ends the wait the operation goes on unobserved: destroy the ID,
// which withdraws it.
//
// # Life of a connection
//
// The active side: [Manager.NewID], [ID.ResolveAddr], [ID.ResolveRoute],
// [ID.CreateQP], [ID.Connect]. The passive side: NewID, [ID.Bind], [ID.Listen]; each
// request is a new ID ([Event].ID of EventConnectRequest, or [ID.GetRequest]), on
// which one calls CreateQP and then [ID.Accept] or [ID.Reject]. Either side ends it
// with [ID.Disconnect]; the other one gets EventDisconnected and calls Disconnect too
// (or Destroy), which is the answer. A queue pair that CreateQP made is moved
// through its states by this package: INIT at once (receives may be posted; datagram
// queue pairs go to RTS, sends may be posted), RTS when the connection is made, on the
// passive side before the accepting message leaves, and ERR in Disconnect and when the
// connection was refused. It is not moved to ERR when the peer
// disconnects: what arrived before can still be received. Queue pairs that the
// application made itself are never touched; [ID.InitQPAttr] gives their attributes.
//
// When a process dies another one at the same address of its host ends its connections:
// the peers get EventDisconnected at once. If it was the last one there, or its host has
// died, that is not noticed on an idle connection. A queue pair with work under way notices it within its
// retry count and ACK timeout, by a completion with ib.WCRetryExcErr.
//
// # Several processes
//
// The processes of a user on a host have their devices' addresses together, as on a NIC.
// What was bound by one is EADDRINUSE for all, port 0 gives what none has, and requests
// come to the process that listens.
//
// # Time
//
// An attempt to connect is repeated 16 times: [ID.Connect] to a host that does not
// answer ends with EventUnreachable after 74 s; a context ends a synchronous call at
// once. Resolving needs no packets and takes no time.
package rdmacm
