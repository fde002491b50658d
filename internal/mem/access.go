package mem

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// knownAccess is every right and hint that a registration may ask for.
const knownAccess = ib.AccessLocalWrite | ib.AccessRemote | ib.AccessMWBind | ib.AccessZeroBased |
	ib.AccessOnDemand | ib.AccessHugeTLB | ib.AccessOptional

// CheckAccess says whether a region may have the rights. EINVAL: bits that
// nobody knows and that are not hints, or remote write or atomic without local
// write (IBA 10.6.3.1, ibv_reg_mr(3)). EOPNOTSUPP: on-demand paging, of the
// whole address space too.
func CheckAccess(a ib.Access) error {
	if u := a &^ knownAccess; u != 0 {
		return &ParamError{"access", fmt.Sprintf("unknown flags %#x", uint32(u)), syscall.EINVAL}
	}
	if a&(ib.AccessRemoteWrite|ib.AccessRemoteAtomic) != 0 && a&ib.AccessLocalWrite == 0 {
		return &ParamError{"access", "remote write and remote atomic need local write: add ib.AccessLocalWrite", syscall.EINVAL}
	}
	if a&ib.AccessOnDemand != 0 {
		return &ParamError{"access", "no on-demand paging", syscall.EOPNOTSUPP}
	}
	return nil
}
