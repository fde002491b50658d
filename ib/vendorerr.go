package ib

import "strconv"

// VendorErr says in a failed completion what its status leaves open
// (ibv_wc.vendor_err). The codes are those of software devices; 0 is none. Others
// than these have no text here.
type VendorErr uint32

// The codes begin with the letters VB, so that nobody takes another vendor's for them.
const (
	_ VendorErr = 0x56420000 + iota

	// Of WCMWBindErr of a WRBindMW or QP.BindMW.
	VendorErrBindWindowGone
	VendorErrBindDomain
	VendorErrBindKey
	VendorErrBindRights
	VendorErrBindZeroBasedType1
	VendorErrBindBound
	VendorErrBindLength
	VendorErrBindRegionGone
	VendorErrBindNoMWBind
	VendorErrBindRegionZeroBased
	VendorErrBindNoLocalWrite
	VendorErrBindRange

	// Of WCMWBindErr of a WRLocalInv.
	VendorErrInvKey
	VendorErrInvKind
	VendorErrInvDomain
	VendorErrInvOtherQP
	VendorErrInvWindows

	// Of WCMWBindErr of a WRRegMR.
	VendorErrRegGone
	VendorErrRegDomain
	VendorErrRegValid
	VendorErrRegKey
	VendorErrRegRights
	VendorErrRegNoMemory

	// Of WCLocQPOpErr of a READ or an atomic.
	VendorErrNoRDAtomic

	// Of WCLocProtErr of a READ.
	VendorErrReadSink

	// Of WCMWBindErr of a WRRegMRIntegrity.
	VendorErrRegSignature
)

var vendorErrText = map[VendorErr]string{
	VendorErrBindWindowGone:      "the window is deallocated",
	VendorErrBindDomain:          "window, region and queue pair are not of one protection domain",
	VendorErrBindKey:             "the key differs from the window's in more than the low 8 bits",
	VendorErrBindRights:          "a window cannot have the rights: want remote ones, and ib.AccessZeroBased",
	VendorErrBindZeroBasedType1:  "a window of type 1 cannot be zero-based",
	VendorErrBindBound:           "the window is bound already: invalidate it first (ib.WRLocalInv)",
	VendorErrBindLength:          "the length is 0",
	VendorErrBindRegionGone:      "the region is deregistered",
	VendorErrBindNoMWBind:        "the region lacks ib.AccessMWBind",
	VendorErrBindRegionZeroBased: "the region is zero-based",
	VendorErrBindNoLocalWrite:    "the region lacks ib.AccessLocalWrite, which remote write and atomics need",
	VendorErrBindRange:           "the range is not inside the region",
	VendorErrInvKey:              "there is no such key",
	VendorErrInvKind:             "the key is not that of a window of type 2 or of a region for fast registration",
	VendorErrInvDomain:           "the key is of another protection domain than the queue pair",
	VendorErrInvOtherQP:          "the window was bound by another queue pair",
	VendorErrInvWindows:          "memory windows are bound to the region",
	VendorErrRegGone:             "the region is deregistered",
	VendorErrRegDomain:           "the region is of another protection domain than the queue pair",
	VendorErrRegValid:            "the region is registered already: invalidate it first (ib.WRLocalInv)",
	VendorErrRegKey:              "the key differs from the region's in more than the low 8 bits",
	VendorErrRegRights:           "a region cannot have the rights",
	VendorErrRegNoMemory:         "the region was given no memory (MR.MapSG)",
	VendorErrNoRDAtomic:          "the queue pair's MaxRDAtomic is 0",
	VendorErrRegSignature:        "memory and attributes of the signature region do not fit together (SigMR.Ready)",
	VendorErrReadSink:            "what a READ fills needs ib.AccessRemoteWrite on an iWARP device",
}

// String says what the code means, or "vendor error 0x12" of unknown ones.
func (e VendorErr) String() string {
	if s, ok := vendorErrText[e]; ok {
		return s
	}
	return "vendor error 0x" + strconv.FormatUint(uint64(e), 16)
}
