package roce

// Syndrome is the first byte of an AETH (IBA 9.7.5.2.1): bit 7 is 0, bits 6 and 5 are the type, bits 4..0 the value.
type Syndrome uint8

// Syndromes of negative acknowledgements, and the ACK of a responder that sends no credits.
const (
	AckNoCredit  Syndrome = 0x1F // ACK without end-to-end credit information
	NAKPSNSeqErr Syndrome = 0x60 // a PSN is missing: send again from the NAK's PSN
	NAKInvReq    Syndrome = 0x61 // invalid request
	NAKRemAccess Syndrome = 0x62 // remote access error
	NAKRemOp     Syndrome = 0x63 // remote operational error
	NAKInvRDReq  Syndrome = 0x64 // invalid reliable datagram request
)

const (
	syndromeTypeMask = 0xE0 // bit 7 included: it must be 0
	syndromeAck      = 0x00
	syndromeRNR      = 0x20
	syndromeNAK      = 0x60
	syndromeValue    = 0x1F
)

// RNRNAK returns the syndrome of a receiver-not-ready NAK with an RNR timer code, 0..31.
func RNRNAK(timer uint8) Syndrome { return syndromeRNR | Syndrome(timer&syndromeValue) }

// IsAck reports whether the syndrome is a positive acknowledgement.
func (s Syndrome) IsAck() bool { return s&syndromeTypeMask == syndromeAck }

// IsRNRNAK reports whether the receiver had no receive request: wait and send again.
func (s Syndrome) IsRNRNAK() bool { return s&syndromeTypeMask == syndromeRNR }

// IsNAK reports whether the syndrome is a NAK other than RNR. Its value may be a reserved one; compare with the constants.
func (s Syndrome) IsNAK() bool { return s&syndromeTypeMask == syndromeNAK }

// RNRTimer returns the timer code of an RNR NAK, 0..31; it means nothing for other syndromes.
func (s Syndrome) RNRTimer() uint8 { return uint8(s & syndromeValue) }

// CreditCode returns the credit code of an ACK, 0..31; 31 says that the responder gives no credit information.
func (s Syndrome) CreditCode() uint8 { return uint8(s & syndromeValue) }

// Credits returns how many receive requests an ACK announces. ok is false if s is no ACK or announces none (code 31).
func (s Syndrome) Credits() (n int, ok bool) {
	if !s.IsAck() || s == AckNoCredit {
		return 0, false
	}
	return int(creditTable[s]), true
}

// creditTable decodes credit codes (IBA 9.7.7.2, end-to-end flow control).
var creditTable = [31]uint16{
	0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192,
	12288, 16384, 24576, 32768,
}

// AckCredits returns the ACK syndrome that announces the largest code not above n receive requests.
func AckCredits(n int) Syndrome {
	code := len(creditTable) - 1
	for code > 0 && int(creditTable[code]) > n {
		code--
	}
	return Syndrome(code)
}

// String names the syndrome for logs and traces.
func (s Syndrome) String() string {
	switch {
	case s.IsAck():
		return "ACK"
	case s.IsRNRNAK():
		return "RNR_NAK"
	}
	switch s {
	case NAKPSNSeqErr:
		return "NAK_PSN_SEQUENCE_ERROR"
	case NAKInvReq:
		return "NAK_INVALID_REQUEST"
	case NAKRemAccess:
		return "NAK_REMOTE_ACCESS_ERROR"
	case NAKRemOp:
		return "NAK_REMOTE_OPERATIONAL_ERROR"
	case NAKInvRDReq:
		return "NAK_INVALID_RD_REQUEST"
	}
	return "Syndrome(" + hexByte(uint8(s)) + ")"
}
