package driver

import (
	"context"

	"github.com/verbena-rdma/verbena/ib"
)

// Provider finds devices.
type Provider interface {
	// Devices lists what can be opened now.
	Devices(ctx context.Context) ([]DeviceInfo, error)
	// Open opens one of them by name. The device is closed with Device.Close.
	Open(ctx context.Context, name string) (Device, error)
}

// DeviceInfo describes a device that is not open.
type DeviceInfo struct {
	Name      string
	GUID      uint64
	NodeType  ib.NodeType
	Transport string // "InfiniBand" (as ibv_devinfo shows RoCE), "iWARP"
	NetDev    string // interface name, if any
}

// Device is an open device (struct ibv_context).
type Device interface {
	Info() DeviceInfo
	Query() ib.DeviceAttr
	QueryPort(port uint8) (ib.PortAttr, error)                    // EINVAL: no such port
	GIDEntry(port uint8, index int) (ib.GIDEntry, error)          // EINVAL: out of range; ENODATA: empty entry
	PKey(port uint8, index int) (ib.PKey, error)                  // EINVAL
	AllocPD() (PD, error)                                         // ENOMEM
	CreateCQ(cqe int, notify func()) (CQ, error)                  // notify: called without locks when an armed CQ fires
	CreateAH(pd PD, attr *ib.AHAttr) (AH, error)                  // EINVAL, ENETUNREACH
	CreateSRQ(pd PD, attr *ib.SRQAttr, ev EventSink) (SRQ, error) // attr is updated with the real sizes
	CreateQP(pd PD, attr *QPInitAttr, ev EventSink) (QP, error)   // attr.Cap is updated
	// Events sets the receiver of device and port events; nil for none.
	Events(EventSink)
	// Close ends the device. EBUSY refuses; with any other error it has ended.
	Close() error
}

// EventSink receives asynchronous events. It is called without locks held, and
// must not block.
type EventSink func(ib.EventType)

// PD is a protection domain.
type PD interface {
	// RegMR registers b, which must not hold Go pointers; the provider pins it until Dereg. EINVAL, ENOMEM, EOPNOTSUPP.
	RegMR(b []byte, iova uint64, useIOVA bool, access ib.Access) (MR, error)
	// RegMRPointer registers memory that Go does not manage.
	RegMRPointer(addr uintptr, length uint64, iova uint64, useIOVA bool, access ib.Access) (MR, error)
	// NullMR gives a region that reads as zeros and swallows writes (ibv_alloc_null_mr).
	NullMR() (MR, error)
	Dealloc() error // EBUSY while something uses it
}

// MR is a memory region.
type MR interface {
	LKey() ib.LKey
	RKey() ib.RKey
	Addr() uint64
	Length() uint64
	Dereg() error // EBUSY while a window is bound
}

// CQ is a completion queue.
type CQ interface {
	// Poll moves up to len(dst) completions. On an empty queue it may make
	// progress for the whole device. A negative count never happens; an
	// overrun queue gives what it holds, then error EOVERFLOW.
	Poll(dst []WC) (int, error)
	// Arm asks for one notification at the next completion (the next solicited
	// or failed one). It reports true when the queue held completions already
	// (IB_CQ_REPORT_MISSED_EVENTS).
	Arm(solicitedOnly bool) bool
	// Wait returns when the queue is not empty, or ctx's error. It makes progress itself.
	Wait(ctx context.Context) error
	Resize(cqe int) error // EINVAL: fewer than it holds, or beyond the limit
	CQE() int             // capacity
	Events(EventSink)     // receiver of CQ_ERR
	Destroy() error       // EBUSY while a queue pair uses it
}

// AH is an address handle.
type AH interface {
	Destroy() error
}

// AHUnwrapper is what a wrapper of an address handle implements; a provider
// that meets an unknown AH in a work request unwraps it.
type AHUnwrapper interface {
	UnwrapAH() AH
}

// SRQ is a shared receive queue.
type SRQ interface {
	PostRecv(wrs []RecvWR) (int, error)
	Modify(attr *ib.SRQAttr, mask ib.SRQAttrMask) error
	Query() ib.SRQAttr
	Num() uint32
	Destroy() error // EBUSY
}

// QPInitAttr describes a queue pair to create (struct ibv_qp_init_attr).
type QPInitAttr struct {
	SendCQ, RecvCQ   CQ
	SRQ              SRQ
	Cap              ib.QPCap
	Type             ib.QPType
	SQSigAll         bool
	BlockSelfMcastLB bool
	IntegrityEn      bool // WRRegMRIntegrity may be posted
	XRCD             XRCD // of a queue pair of type XRCRecv
}

// QP is a queue pair.
type QP interface {
	Num() ib.QPN
	Modify(attr *ib.QPAttr, mask ib.QPAttrMask) error
	Query() (ib.QPAttr, error)
	// PostSend posts in order and returns how many were taken. The error is
	// about wrs[n]: EINVAL for a bad one, ENOMEM for a full queue.
	PostSend(wrs []SendWR) (n int, err error)
	PostRecv(wrs []RecvWR) (n int, err error)
	Destroy() error
}
