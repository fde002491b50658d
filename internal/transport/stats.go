package transport

import "reflect"

// Stats are the counters of a shard's protocol; they only grow. Names follow
// Linux's hw_counters where one exists. Every drop of a packet has a counter.
type Stats struct {
	SentPackets    uint64
	RcvdPackets    uint64
	DuplicateReq   uint64 // duplicate_request
	OutOfSeq       uint64 // out_of_seq_request: PSN ahead of the expected one
	RcvdRNR        uint64 // rcvd_rnr_err
	SentRNR        uint64 // send_rnr_err
	RcvdSeqNAK     uint64 // rcvd_seq_err
	SentSeqNAK     uint64
	AckDeferred    uint64 // ack_deferred
	RetryExceeded  uint64 // retry_exceeded_err
	RNRRetryExceed uint64 // retry_rnr_exceeded_err
	LocalTimeouts  uint64 // ACK timeouts
	Retransmits    uint64 // packets sent again
	CompleterErr   uint64 // completer_retry_err
	CQOverruns     uint64

	// Drops before a queue pair sees the packet.
	DropShort     uint64 // shorter than its headers
	DropVersion   uint64 // TVer != 0
	DropOpcode    uint64 // unknown opcode
	DropPad       uint64
	DropICRC      uint64
	DropID        uint64 // the solved IP identification is implausible
	DropNoQP      uint64 // no such queue pair
	DropSource    uint64 // not from the peer's address
	DropTransport uint64 // service of the opcode is not that of the queue pair
	DropPKey      uint64
	DropGSI       uint64 // for queue pair 1 while nobody serves it
	DropMulticast uint64
	// Drops by a queue pair.
	DropState     uint64 // below RTR, or in error
	DropQKey      uint64
	DropNoRecv    uint64 // datagram without a receive posted
	DropLength    uint64 // datagram longer than the receive buffer, or wrong length
	DropSequence  uint64 // UC: out of sequence
	DropAccess    uint64 // UC: no right to write there
	DropStale     uint64 // response that nobody waits for
	DropDuplicate uint64 // duplicate READ/atomic without a saved entry
	DropRNRWait   uint64 // after a NAK, until the expected PSN comes
}

// Add adds o's counters to s.
func (s *Stats) Add(o *Stats) {
	a, b := reflect.ValueOf(s).Elem(), reflect.ValueOf(o).Elem()
	for i := range a.NumField() {
		f := a.Field(i)
		f.SetUint(f.Uint() + b.Field(i).Uint())
	}
}

// Each calls f with the name and value of every counter.
func (s *Stats) Each(f func(name string, v uint64)) {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		f(v.Type().Field(i).Name, v.Field(i).Uint())
	}
}
