package verbs

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// What is refused whatever the provider, and what one answers that has no
// multicast.
func TestMulticastOfOtherProviders(t *testing.T) {
	k := newKit(t)
	group := ib.GIDFromAddr(netip.MustParseAddr("239.1.2.3"))
	q := k.qp(t, ib.UD)
	for _, c := range []struct {
		what string
		err  error
		want syscall.Errno
	}{
		{"attach", q.AttachMcast(group, 0), syscall.EOPNOTSUPP},
		{"detach", q.DetachMcast(group, 0), syscall.EOPNOTSUPP},
		{"no group", q.AttachMcast(ib.GID{}, 0), syscall.EINVAL},
		{"not UD", k.qp(t, ib.RC).AttachMcast(group, 0), syscall.EINVAL},
	} {
		if !errors.Is(c.err, c.want) {
			t.Errorf("%s: %v, want %v", c.what, c.err, c.want)
		}
	}
	if err := q.Destroy(); err != nil {
		t.Error(err)
	}
	if err := q.AttachMcast(group, 0); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("destroyed: %v", err)
	}
}
