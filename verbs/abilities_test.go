package verbs

import (
	"errors"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// What a provider does not have is EOPNOTSUPP, whatever the call is given.
func TestProviderWithoutMemoryAbilities(t *testing.T) {
	k := newKit(t)
	qp := k.qp(t, ib.RC)
	mr, err := k.pd.RegMR(make([]byte, 8), 0)
	if err != nil {
		t.Fatal(err)
	}
	_, window := k.pd.AllocMW(ib.MWType1)
	_, fast := k.pd.AllocMR(1)
	_, sig := k.pd.AllocMRIntegrity(1, 1)
	_, key := k.pd.LocalDMALKey()
	_, buffer := k.pd.AllocBuffer(1, 0)
	_, dm := k.ctx.AllocDM(&DMAttr{Length: 1})
	for what, err := range map[string]error{
		"alloc_mw": window, "alloc_mr": fast, "alloc_mr_integrity": sig, "local_dma_lkey": key, "alloc_buffer": buffer, "alloc_dm": dm,
		"rereg_mr":  mr.Rereg(ib.ReregAccess, &ReregAttr{}),
		"advise_mr": k.pd.AdviseMR(0, 0, nil),
		"bind_mw":   qp.BindMW(new(MW), &MWBind{}),
		"post_send": qp.PostSendAll(nil),
	} {
		var oe *OpError
		if !errors.Is(err, syscall.EOPNOTSUPP) || !errors.As(err, &oe) || oe.Op != what {
			t.Errorf("%s: %v", what, err)
		}
	}
	if k.pd.LocalDMAReaches(mr.Bytes()) {
		t.Error("without a key")
	}
	if err := errors.Join(qp.Destroy(), mr.Dereg()); err != nil {
		t.Error(err)
	}
}
