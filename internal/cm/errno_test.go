package cm

import (
	"errors"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

const einval = syscall.EINVAL

func isErrno(t testing.TB, err error, want syscall.Errno) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

// names fails unless the error is EINVAL and names the parameter.
func names(t testing.TB, err error, param string) {
	t.Helper()
	isErrno(t, err, einval)
	var p *ib.ParamError
	if !errors.As(err, &p) || p.Param != param {
		t.Fatalf("error %v does not name %s", err, param)
	}
}
