package ib

// Bits of DeviceAttr.DeviceCapFlags that software devices have beside those of memory,
// XRC and annex A19 (enum ibv_device_cap_flags).
const (
	DeviceCapUDAVPortEnforce = 1 << 6  // datagrams leave by the address handle's port only
	DeviceCapCurQPStateMod   = 1 << 7  // modify takes QPAttrCurState
	DeviceCapSysImageGUID    = 1 << 11 // SysImageGUID is valid
	DeviceCapRCRNRNAKGen     = 1 << 12 // RC responders send RNR NAKs
	DeviceCapSRQResize       = 1 << 13 // SRQ.Modify resizes
)
