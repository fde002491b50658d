package verbs_test

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// A list is posted whole, or nothing of it: where one request is bad, and where there is
// no room for all.
func TestPostSendAll(t *testing.T) {
	r := newRig(t, 9000)
	qa, _ := r.pair(ib.RC)
	one := verbs.SendWR{Opcode: ib.WRRDMARead, Flags: ib.SendSignaled, WRID: 7}
	_, init, err := qa.Query()
	if err != nil {
		t.Fatal(err)
	}
	room := int(init.Cap.MaxSendWR)
	bad := verbs.SendWR{Opcode: 99, WRID: 8}
	var which *verbs.PostError
	if err := qa.PostSendAll([]verbs.SendWR{one, one, bad, one}); !errors.Is(err, syscall.EINVAL) || !errors.As(err, &which) || which.Index != 2 || which.WRID != 8 {
		t.Error(err)
	}
	if err := qa.PostSendAll(slices.Repeat([]verbs.SendWR{one}, room+1)); !errors.Is(err, syscall.ENOMEM) {
		t.Error(err)
	}
	r.quiet(r.a.cq)
	if err := qa.PostSendAll(slices.Repeat([]verbs.SendWR{one}, room)); err != nil {
		t.Error(err)
	}
	if err := qa.PostSendAll(nil); err != nil {
		t.Error(err)
	}
	for _, wc := range r.wcs(r.a.cq, room) {
		if wc.Err() != nil || wc.WRID != 7 {
			t.Errorf("%+v", wc)
		}
	}
	r.a.drop()
	if err := qa.Destroy(); err != nil {
		t.Fatal(err)
	}
	if err := qa.PostSendAll([]verbs.SendWR{one}); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
}

func TestLocalDMAReaches(t *testing.T) {
	r := newRig(t, 9000)
	one, two, other := r.a.buffer(3*page, 0), r.a.buffer(page, 0), r.b.buffer(page, 0)
	b := one.Bytes()
	for name, c := range map[string]struct {
		b    []byte
		want bool
	}{
		"all": {b, true}, "a part": {b[5:7], true}, "its end": {b[3*page-1:], true}, "another one": {two.Bytes(), true},
		"nothing": {b[:0], false}, "Go's memory": {make([]byte, 9), false}, "another domain's": {other.Bytes(), false},
		"a registered region": {r.a.mem(64).Bytes(), false},
	} {
		if got := r.a.pd.LocalDMAReaches(c.b); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	gone := ok(r.a.pd.AllocBuffer(page, 0))(t)
	part := gone.Bytes()[1:2]
	if err := gone.Close(); err != nil || r.a.pd.LocalDMAReaches(part) {
		t.Error("a buffer that was closed", err)
	}
}
