package verbs

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/wire/roce"
)

// What stands before a datagram comes from the network: an address is made of it
// or it is refused.
func FuzzInitAHFromWC(f *testing.F) {
	k := newKit(f)
	mine, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.9")
	mine6, other6 := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::9")
	k.dev.gids = map[int]ib.GID{1: ib.GIDFromAddr(mine), 5: ib.GIDFromAddr(mine6)}
	grh := make([]byte, roce.GRHLen)
	f.Add(append([]byte(nil), grh...))
	roce.PutGRH4(grh, other, mine, 0x22, 63, 77, 100)
	f.Add(append([]byte(nil), grh...))
	roce.PutGRH6(grh, other6, mine6, 0x33, 0x54321, 62, 100)
	f.Add(append([]byte(nil), grh...))
	f.Fuzz(func(t *testing.T, grh []byte) {
		a, err := k.ctx.InitAHFromWC(1, &WC{Flags: ib.WCGRH}, grh)
		switch {
		case err != nil:
			if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, ib.ErrNoData) || a != (ib.AHAttr{}) {
				t.Fatalf("%x: %+v, %v", grh, a, err)
			}
		case !a.IsGlobal || a.SGIDIndex != 1 && a.SGIDIndex != 5 || a.FlowLabel > 0xFFFFF:
			t.Errorf("%x: %+v", grh, a)
		}
	})
}
