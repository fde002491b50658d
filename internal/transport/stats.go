package transport

import (
	"reflect"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Stats are the counters of the protocol, of a queue pair each; what belongs to
// no queue pair is counted by the device. They only grow. Every packet that is
// dropped has a counter that tells why.
//
// The tag is the counter's name, the only place where it stands: the one of
// Linux's hw_counters where one exists, of rdma_rxe first, then mlx5's and efa's. With
// `scope:"device"` a queue pair never has it, since none was found yet.
type Stats struct {
	RcvdPackets    uint64 `counter:"rcvd_pkts"`
	SentPackets    uint64 `counter:"sent_pkts"`
	RDMASends      uint64 `counter:"rdma_sends"`             // SEND requests completed
	RDMARecvs      uint64 `counter:"rdma_recvs"`             // receive requests completed
	DuplicateReq   uint64 `counter:"duplicate_request"`      // requests seen before
	OutOfSeq       uint64 `counter:"out_of_seq_request"`     // PSN ahead of the expected one
	RcvdRNR        uint64 `counter:"rcvd_rnr_err"`           // RNR NAKs
	SentRNR        uint64 `counter:"send_rnr_err"`           // ... sent: no receive was posted
	RcvdSeqNAK     uint64 `counter:"rcvd_seq_err"`           // NAKs for a PSN sequence error
	SentSeqNAK     uint64 `counter:"send_seq_err"`           // ... sent
	AckDeferred    uint64 `counter:"ack_deferred"`           // ACKs that wait behind READ responses
	RetryExceeded  uint64 `counter:"retry_exceeded_err"`     // retry_cnt used up
	RNRRetryExceed uint64 `counter:"retry_rnr_exceeded_err"` // rnr_retry used up
	LocalTimeouts  uint64 `counter:"local_ack_timeout_err"`  // ACK timer ran out
	Retransmits    uint64 `counter:"retrans_pkts"`           // request packets sent again
	CompleterRetry uint64 `counter:"completer_retry_err"`    // times that sending began anew
	ImpliedNAK     uint64 `counter:"implied_nak_seq_err"`    // a response is missing: something behind it came
	BadResponse    uint64 `counter:"bad_response_err"`       // responses that are no answer to the request
	CQOverruns     uint64 `counter:"cq_overrun_err"`         // completions that found the queue full

	// Completions with an error, of the requester and of the responder.
	ReqCQEError       uint64 `counter:"req_cqe_error"`
	ReqCQEFlush       uint64 `counter:"req_cqe_flush_error"`
	ReqRemoteInvalid  uint64 `counter:"req_remote_invalid_request"`
	ReqRemoteAccess   uint64 `counter:"req_remote_access_errors"`
	RespCQEError      uint64 `counter:"resp_cqe_error"`
	RespCQEFlush      uint64 `counter:"resp_cqe_flush_error"`
	RespLocalLength   uint64 `counter:"resp_local_length_error"`   // messages longer than the receive request
	RespRemoteInvalid uint64 `counter:"resp_remote_invalid_error"` // requests refused with "invalid request"
	RespRemoteAccess  uint64 `counter:"resp_remote_access_errors"` // ... with "remote access error"

	// Drops before a queue pair sees the packet.
	DropShort     uint64 `counter:"drop_short" scope:"device"`   // shorter than its headers
	DropVersion   uint64 `counter:"drop_version" scope:"device"` // TVer != 0
	DropOpcode    uint64 `counter:"drop_opcode" scope:"device"`  // unknown opcode
	DropPad       uint64 `counter:"drop_pad" scope:"device"`     // more padding than payload
	DropICRC      uint64 `counter:"drop_icrc"`
	DropID        uint64 `counter:"drop_ip_id"`                    // the solved IP identification is implausible
	DropNoQP      uint64 `counter:"drop_no_qp" scope:"device"`     // no such queue pair
	DropSource    uint64 `counter:"drop_source"`                   // not from the peer's address
	DropTransport uint64 `counter:"drop_transport"`                // service of the opcode is not that of the queue pair
	CNPIgnored    uint64 `counter:"rp_cnp_ignored"`                // congestion notifications: the window is ruled by loss alone
	DropPKey      uint64 `counter:"drop_pkey"`                     // another partition
	DropGSI       uint64 `counter:"drop_gsi" scope:"device"`       // for queue pair 1 while nobody serves it, or its queue is full
	DropMulticast uint64 `counter:"drop_multicast" scope:"device"` // to a group that no queue pair is attached to
	// Of processes that share an address.
	Strays     uint64 `counter:"stray_pkts" scope:"device"`   // packets for another process, given to it
	DropStray  uint64 `counter:"drop_stray" scope:"device"`   // ... that it did not take
	MADRelayed uint64 `counter:"relayed_mads" scope:"device"` // management datagrams for another process, given to it
	// Drops by a queue pair.
	DropState      uint64 `counter:"drop_state"`         // below RTR, or in error
	DropQKey       uint64 `counter:"drop_qkey"`          // datagram with another Q_Key
	DropNoRecv     uint64 `counter:"drop_no_recv"`       // datagram without a receive posted
	DropLength     uint64 `counter:"drop_length"`        // datagram longer than the receive buffer, or wrong length
	DropSequence   uint64 `counter:"drop_sequence"`      // UC: out of sequence
	DropAccess     uint64 `counter:"drop_access"`        // UC: no right to write there
	DropStale      uint64 `counter:"drop_stale"`         // response that nobody waits for
	DropDuplicate  uint64 `counter:"drop_duplicate"`     // duplicate READ/atomic without a saved entry
	DropRNRWait    uint64 `counter:"drop_after_nak"`     // after a NAK, until the expected PSN comes
	DropInvalidate uint64 `counter:"drop_invalidate"`    // SEND that asks to invalidate a key that cannot be
	DropOwn        uint64 `counter:"drop_own_multicast"` // to a group, by the queue pair itself, which does not want that
}

// sendFailed counts a send request that completes with an error.
func (s *Stats) sendFailed(status ib.WCStatus) {
	s.ReqCQEError++
	switch status {
	case ib.WCWRFlushErr:
		s.ReqCQEFlush++
	case ib.WCRemInvReqErr:
		s.ReqRemoteInvalid++
	case ib.WCRemAccessErr:
		s.ReqRemoteAccess++
	}
}

// recvFailed counts a receive request that completes with an error.
func (s *Stats) recvFailed(status ib.WCStatus) {
	s.RespCQEError++
	switch status {
	case ib.WCWRFlushErr:
		s.RespCQEFlush++
	case ib.WCLocLenErr:
		s.RespLocalLength++
	}
}

// Each calls f with the name and value of every counter.
func (s *Stats) Each(f func(name string, v uint64)) {
	v := reflect.ValueOf(s).Elem()
	for i := range v.NumField() {
		f(counterName(v.Type().Field(i)), v.Field(i).Uint())
	}
}

// Counters lists the counters, those of a queue pair only or all.
func (s *Stats) Counters(ofQP bool) []driver.Counter {
	v := reflect.ValueOf(s).Elem()
	list := make([]driver.Counter, 0, v.NumField())
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if ofQP && f.Tag.Get("scope") == "device" {
			continue
		}
		list = append(list, driver.Counter{Name: counterName(f), Value: v.Field(i).Uint()})
	}
	return list
}

func counterName(f reflect.StructField) string {
	if n := f.Tag.Get("counter"); n != "" {
		return n
	}
	return f.Name
}
