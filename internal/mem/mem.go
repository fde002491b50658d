package mem

import (
	"errors"

	"github.com/verbena-rdma/verbena/ib"
)

// ErrFault tells that registered memory could not be touched: it was unmapped
// or protected under the registration.
var ErrFault = errors.New("registered memory is not accessible")

// PD is a protection domain. Objects hold it by pointer; two domains are the
// same if their pointers are.
type PD struct{ refs int32 }

// Region is a registered memory region as the key table holds it.
type Region struct {
	key    uint32
	pd     *PD
	iova   uint64 // address by which work requests name the first byte
	length uint64
	access ib.Access
	buf    []byte
}

// Table is the key table of a device.
type Table struct{}

// NewTable makes an empty table. seed makes keys unpredictable.
func NewTable(max int, seed uint64) *Table { return &Table{} }

// Local resolves length bytes at addr under lkey for local use, in the
// protection domain pd; write tells that they will be written (needs
// AccessLocalWrite). The pieces are appended to out: usually one, several for
// memory that is not contiguous. False: protection error. A length of 0 is
// never looked up.
func (t *Table) Local(pd *PD, lkey ib.LKey, addr, length uint64, write bool, out [][]byte) ([][]byte, bool) {
	return out, false
}

// Remote resolves memory that a peer named by rkey, for queue pair qpn of pd;
// need is the right that the operation takes. False: remote access error.
func (t *Table) Remote(pd *PD, qpn ib.QPN, rkey ib.RKey, va, length uint64, need ib.Access, out [][]byte) ([][]byte, bool) {
	return out, false
}

// Copy copies src to dst (of the same length) under the guard.
func Copy(dst, src []byte) error { copy(dst, src); return nil }

// CRC continues the CRC-32 (IEEE) over b under the guard.
func CRC(crc uint32, b []byte) (uint32, error) { return crc, nil }

// FetchAdd atomically adds to the 8-byte integer in host order at b, which is
// aligned, and returns what was there before.
func FetchAdd(b []byte, add uint64) (uint64, error) { return 0, nil }

// CompareSwap atomically stores swap at b if it holds compare, and returns
// what was there before.
func CompareSwap(b []byte, compare, swap uint64) (uint64, error) { return 0, nil }
