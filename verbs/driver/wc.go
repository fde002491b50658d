package driver

import (
	"strconv"

	"github.com/verbena-rdma/verbena/ib"
)

// Err is nil for a completion that succeeded, else a *WCError that says what
// failed. Completions themselves are values: only the call that wants an error
// pays for one.
func (wc *WC) Err() error {
	if wc.Status == ib.WCSuccess {
		return nil
	}
	return &WCError{Status: wc.Status, Opcode: wc.Opcode, WRID: wc.WRID, QPNum: wc.QPNum, VendorErr: wc.VendorErr}
}

// WCError is a failed completion as an error. Opcode is not defined for failed
// work on every device: only Status, WRID, QPNum and VendorErr are
// (ibv_poll_cq(3)).
type WCError struct {
	Status    ib.WCStatus
	Opcode    ib.WCOpcode
	WRID      uint64
	QPNum     ib.QPN
	VendorErr uint32
}

// Error tells the status in words, the work request with its operation, the queue
// pair, and what the vendor's code says besides.
func (e *WCError) Error() string {
	s := "work request " + strconv.FormatUint(e.WRID, 10) + " (" + e.Opcode.String() + ") on queue pair 0x" +
		strconv.FormatUint(uint64(e.QPNum), 16) + ": " + e.Status.String()
	if e.VendorErr != 0 {
		s += " (" + ib.VendorErr(e.VendorErr).String() + ")"
	}
	return s
}

// Is reports whether target is a *WCError that names only this status, so that
// errors.Is(err, &WCError{Status: ib.WCWRFlushErr}) asks for a status.
func (e *WCError) Is(target error) bool {
	t, ok := target.(*WCError)
	return ok && *t == WCError{Status: e.Status}
}
