package soft

import "github.com/verbena-rdma/verbena/ib"

// What the device can do. Query and checks share these.
const (
	maxQP        = 1 << 17
	maxQPWR      = 1 << 15
	maxSGE       = 32
	maxInline    = 1024
	maxCQ        = 1 << 17
	maxCQE       = 1<<20 - 1
	maxMR        = 1 << 18
	maxMW        = maxMR / 2
	maxPD        = 1 << 17
	maxAH        = 1 << 17
	maxSRQ       = 1 << 16
	maxSRQWR     = 1 << 15
	maxRDAtomic  = 128
	maxXRCD      = 1 << 16
	gidTableLen  = 256
	pkeyTableLen = 1
	ackDelay     = 15 // 134 ms, as Linux's soft RoCE tells
	portNum      = 1
	vendorID     = 0
	vendorPart   = 0
	fwVersion    = "0.1"

	// accessQP are the rights that a queue pair may grant.
	accessQP = ib.AccessLocalWrite | ib.AccessRemoteWrite | ib.AccessRemoteRead | ib.AccessRemoteAtomic |
		ib.AccessMWBind | ib.AccessFlushGlobal | ib.AccessFlushPersistent

	maxFastRegPages = 512                 // as Linux's soft RoCE has
	maxPIPages      = maxFastRegPages / 2 // as NICs have it: half is for the protection information
	maxDMSize       = 64 << 20
	maxDMLogAlign   = 21

	// Device capability flags (enum ibv_device_cap_flags).
	capUDAVPort       = ib.DeviceCapUDAVPortEnforce
	capCurQPState     = ib.DeviceCapCurQPStateMod
	capSysImageGUID   = ib.DeviceCapSysImageGUID
	capRCRNRNAKGen    = ib.DeviceCapRCRNRNAKGen
	capSRQResize      = ib.DeviceCapSRQResize
	deviceCapFlags    = capMemory | ib.DeviceCapXRC | capUDAVPort | capCurQPState | capSysImageGUID | capRCRNRNAKGen | capSRQResize
	capMemory         = ib.DeviceCapMemWindow | ib.DeviceCapMemWindowType2B | ib.DeviceCapMemMgtExtensions | ib.DeviceCapLocalDMALKey
	portCapIPBasedGID = 1 << 26 // IBV_PORT_IP_BASED_GIDS
)
