package rdmacm_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// impatient is a provider of a device whose first opening takes longer than its caller waits.
type impatient struct {
	dev    driver.Device
	cancel context.CancelFunc
}

func (p *impatient) Devices(context.Context) ([]driver.DeviceInfo, error) {
	return []driver.DeviceInfo{{Name: "slow"}}, nil
}

func (p *impatient) Open(ctx context.Context, _ string) (driver.Device, error) {
	if p.cancel != nil {
		p.cancel()
		p.cancel = nil
		return nil, ctx.Err()
	}
	return p.dev, nil
}

// Who gives up while the devices are opened does not take any of them from those who come later.
func TestContextEndsOpening(t *testing.T) {
	r := newCMRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	m := rdmacm.NewManager(rdmacm.WithManual(r.net.Now), rdmacm.WithContexts(r.a.ctx), rdmacm.WithProviders(&impatient{r.b.soft, cancel}))
	if list, err := m.Devices(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%d devices, %v", len(list), err)
	}
	if list, err := m.Devices(t.Context()); err != nil || len(list) != 2 {
		t.Errorf("%d devices, %v", len(list), err)
	}
	r.b.dead = true // the manager closes the device
	r.b.must(errors.Join(r.b.ch.Close(), r.b.m.Close(), m.Close()))
}

// broken is a provider of a device that cannot be opened.
type broken struct{}

func (broken) Devices(context.Context) ([]driver.DeviceInfo, error) {
	return []driver.DeviceInfo{{Name: "broken"}}, nil
}

func (broken) Open(context.Context, string) (driver.Device, error) {
	return nil, errors.New("its file is taken")
}

// Where an address is not found while a device is missing, the error tells why it is.
func TestAddressOfMissingDevice(t *testing.T) {
	r := newCMRig(t)
	m := rdmacm.NewManager(rdmacm.WithManual(r.net.Now), rdmacm.WithContexts(r.a.ctx), rdmacm.WithProviders(broken{}))
	id, err := m.NewID(nil, rdmacm.PSTCP, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = id.Bind(netip.MustParseAddrPort("192.0.2.99:7000"))
	if !errors.Is(err, syscall.EADDRNOTAVAIL) || !strings.Contains(err.Error(), "its file is taken") {
		t.Errorf("%v, want EADDRNOTAVAIL and why a device is missing", err)
	}
	r.a.must(errors.Join(id.Destroy(t.Context()), m.Close()))
}
