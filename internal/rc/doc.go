// Package rc is the reliable connection service (IBA 9.7): the requester that
// cuts work requests into packets, the completer that digests what comes back,
// and the responder that executes what a peer asks for.
//
// The two halves of a queue pair share nothing but its common part and the
// environment of the call. Everything is driven from outside: a post, a packet,
// a deadline; nothing here blocks, reads a clock or touches a socket.
//
//	qp.go         the service: dispatch, states, deadlines, errors
//	requester.go  work requests to packets, fences, depth of READs
//	window.go     what may be under way
//	completer.go  ACKs, NAKs, READ and atomic responses to completions
//	retry.go      ACK timeout, RNR wait, go-back-N
//	responder.go  a request's way through the checks to its execution
//	verdict.go    what the checks find, and the NAK, status and event it leads to
//	resources.go  saved READs and atomics, and their replay
//	extended.go   RDMA FLUSH and ATOMIC WRITE
//	respread.go   the responses to READs and atomics, in order, in turns
//	ack.go        ACKs and NAKs
package rc
