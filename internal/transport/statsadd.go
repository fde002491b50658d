package transport

// Add adds o's counters to s. Written out, since a device with thousands of queue
// pairs adds up theirs under the lock of the data path, and reflection takes many
// times as long; a test holds it to the fields.
func (s *Stats) Add(o *Stats) {
	s.RcvdPackets += o.RcvdPackets
	s.SentPackets += o.SentPackets
	s.RDMASends += o.RDMASends
	s.RDMARecvs += o.RDMARecvs
	s.DuplicateReq += o.DuplicateReq
	s.OutOfSeq += o.OutOfSeq
	s.RcvdRNR += o.RcvdRNR
	s.SentRNR += o.SentRNR
	s.RcvdSeqNAK += o.RcvdSeqNAK
	s.SentSeqNAK += o.SentSeqNAK
	s.AckDeferred += o.AckDeferred
	s.RetryExceeded += o.RetryExceeded
	s.RNRRetryExceed += o.RNRRetryExceed
	s.LocalTimeouts += o.LocalTimeouts
	s.Retransmits += o.Retransmits
	s.CompleterRetry += o.CompleterRetry
	s.ImpliedNAK += o.ImpliedNAK
	s.BadResponse += o.BadResponse
	s.CQOverruns += o.CQOverruns
	s.ReqCQEError += o.ReqCQEError
	s.ReqCQEFlush += o.ReqCQEFlush
	s.ReqRemoteInvalid += o.ReqRemoteInvalid
	s.ReqRemoteAccess += o.ReqRemoteAccess
	s.RespCQEError += o.RespCQEError
	s.RespCQEFlush += o.RespCQEFlush
	s.RespLocalLength += o.RespLocalLength
	s.RespRemoteInvalid += o.RespRemoteInvalid
	s.RespRemoteAccess += o.RespRemoteAccess
	s.DropShort += o.DropShort
	s.DropVersion += o.DropVersion
	s.DropOpcode += o.DropOpcode
	s.DropPad += o.DropPad
	s.DropICRC += o.DropICRC
	s.DropID += o.DropID
	s.DropNoQP += o.DropNoQP
	s.DropSource += o.DropSource
	s.DropTransport += o.DropTransport
	s.CNPIgnored += o.CNPIgnored
	s.DropPKey += o.DropPKey
	s.DropGSI += o.DropGSI
	s.DropMulticast += o.DropMulticast
	s.DropState += o.DropState
	s.DropQKey += o.DropQKey
	s.DropNoRecv += o.DropNoRecv
	s.DropLength += o.DropLength
	s.DropSequence += o.DropSequence
	s.DropAccess += o.DropAccess
	s.DropStale += o.DropStale
	s.DropDuplicate += o.DropDuplicate
	s.DropRNRWait += o.DropRNRWait
	s.DropInvalidate += o.DropInvalidate
	s.DropOwn += o.DropOwn
	s.Strays += o.Strays
	s.DropStray += o.DropStray
	s.MADRelayed += o.MADRelayed
}
