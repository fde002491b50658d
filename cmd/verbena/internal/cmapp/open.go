// Package cmapp is what the commands share that show the connection manager: how
// they find their devices and addresses, the messages that they exchange, and how
// they tell of events. Their counterparts are the example programs of librdmacm.
package cmapp

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"time"

	"github.com/verbena-rdma/verbena/cmd/verbena/internal/cli"
	"github.com/verbena-rdma/verbena/rdma"
	"github.com/verbena-rdma/verbena/rdmacm"
	"github.com/verbena-rdma/verbena/verbs"
)

// App is a manager with its devices.
type App struct {
	*rdmacm.Manager
	devs []*verbs.Context
}

// Open makes a manager. With an address of this host its one device has just this
// address: another process can have the host's others. Else (invalid, or 0.0.0.0 or ::)
// it has all devices that can be opened, with the addresses that they have or
// that the environment gives them.
func Open(ctx context.Context, addr netip.Addr) (*App, error) {
	a := &App{}
	if addr.IsValid() && !addr.IsUnspecified() {
		dev, err := cli.Open(ctx, "", addr.Unmap().String())
		if err != nil {
			return nil, err
		}
		a.devs = append(a.devs, dev)
	} else if err := a.openAll(ctx); err != nil {
		return nil, err
	}
	a.Manager = rdmacm.NewManager(rdmacm.WithContexts(a.devs...))
	return a, nil
}

func (a *App) openAll(ctx context.Context) error {
	list, err := rdma.Devices(ctx)
	if err != nil {
		return err
	}
	var first error
	for _, d := range list {
		dev, err := d.Open(ctx)
		switch {
		case err == nil:
			a.devs = append(a.devs, dev)
		case errors.Is(err, syscall.EBUSY): // its capture: left out, it would be missed without a word
			for _, d := range a.devs {
				err = errors.Join(err, d.Close())
			}
			return cli.Hint(err, "All devices are opened, and each needs a file: write {device} into the name that "+rdma.CaptureEnv+" gives")
		case first == nil:
			first = err
		}
	}
	switch {
	case len(a.devs) > 0:
		return nil
	case first != nil:
		return first
	}
	return cli.Hint(errors.New("there is no device"), "A network interface that is up and has an address is one. See: verbena devices")
}

// Close ends manager and devices. IDs and event channels must be gone.
func (a *App) Close() error {
	errs := []error{a.Manager.Close()}
	for _, d := range a.devs {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}

// cleanupTime is enough for anything but a peer that does not answer.
const cleanupTime = 5 * time.Second

// Cleanup is a context for giving things back, also when ctx is done.
func Cleanup(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
}
