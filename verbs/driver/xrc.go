package driver

import (
	"io/fs"

	"github.com/verbena-rdma/verbena/ib"
)

// XRCDevice is a device that has XRC. Its CreateQP takes XRCSend, which has no
// receive side: RecvCQ and SRQ are not looked at; and XRCRecv with a nil PD, whose
// QPInitAttr has the XRCD and nothing else.
type XRCDevice interface {
	// OpenXRCD opens an XRC domain: that of the file, or one of its own.
	OpenXRCD(attr *XRCDInitAttr) (XRCD, error) // EAGAIN, EINVAL, ENOMEM
	// CreateXRCSRQ makes a shared receive queue for XRC, which completes to cq.
	CreateXRCSRQ(pd PD, xrcd XRCD, cq CQ, attr *ib.SRQAttr, ev EventSink) (SRQ, error) // EINVAL, ENOMEM
	// OpenXRCTarget gives one more handle of an XRCRecv queue pair of the domain. Each
	// handle gets its events; the queue pair ends when the last one is destroyed.
	OpenXRCTarget(xrcd XRCD, num ib.QPN, ev EventSink) (QP, error) // EINVAL: there is none
}

// XRCDInitAttr says which XRC domain to open.
type XRCDInitAttr struct {
	File    fs.FileInfo // the domain of this file (os.SameFile); nil: one of its own
	Create  bool        // O_CREAT: make it if there is none
	Exclude bool        // O_EXCL: fail if there is one
}

// XRCD is an open XRC domain.
type XRCD interface {
	Close() error // EBUSY: something that was made through it uses it
}

// ECEQP is a queue pair that keeps ECE options.
type ECEQP interface {
	// SetECE asks for options; what is accepted is written back.
	SetECE(ece *ib.ECE) error // EINVAL
	QueryECE() (ib.ECE, error)
}

// RateLimiter is a queue pair that can limit what it sends.
type RateLimiter interface {
	ModifyRateLimit(attr *ib.QPRateLimitAttr) error
}

// DataInOrder is a queue pair that can tell whether the data of an operation are
// written in order of their addresses; others do not guarantee it.
type DataInOrder interface {
	DataInOrder(op ib.WROpcode) bool
}
