package driver

import "github.com/verbena-rdma/verbena/ib"

// SigMR is a signature region (kernel: ib_mr of type IB_MR_TYPE_INTEGRITY). Its Length
// is that of the wire's view, 0 as long as mapping and attributes do not fit together.
type SigMR interface {
	MR
	// MapSGPI sets the memory that the next WRRegMRIntegrity registers. n is how many
	// slices of both lists were mapped: all, or none on an error. EINVAL.
	MapSGPI(data [][]byte, dataOffset int, meta [][]byte, metaOffset int, pageSize int) (n int, err error)
	// SetSigAttrs sets what becomes of the data from the next WRRegMRIntegrity on.
	// EINVAL.
	SetSigAttrs(a *ib.SigAttrs) error
	// Ready says whether mapping and attributes fit together. EINVAL.
	Ready() error
	// CheckStatus gives the first error that was found since the last call or
	// registration, and forgets it.
	CheckStatus() (ib.SigErr, bool)
}

// IntegrityPD is a domain that has signature regions.
type IntegrityPD interface {
	AllocMRIntegrity(maxDataSG, maxMetaSG int) (SigMR, error) // EINVAL, ENOMEM
}
