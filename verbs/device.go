package verbs

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Device is a device that can be opened (struct ibv_device).
type Device struct {
	info     driver.DeviceInfo
	provider driver.Provider
}

// Devices lists the devices of the providers, in their order
// (ibv_get_device_list). A provider that fails does not hide the devices of the
// others: the call fails, with all their errors, only when no device is left.
// No device and no failure is an empty list.
// It fails with ctx's error if that is done.
func Devices(ctx context.Context, providers ...driver.Provider) ([]*Device, error) {
	var (
		list []*Device
		errs []error
	)
	if err := ctx.Err(); err != nil {
		return nil, opErr("get_device_list", err)
	}
	for _, p := range providers {
		infos, err := p.Devices(ctx)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, i := range infos {
			list = append(list, &Device{info: i, provider: p})
		}
	}
	if len(list) == 0 {
		return nil, opErr("get_device_list", errors.Join(errs...))
	}
	return list, nil
}

// Name is the device's name (ibv_get_device_name).
func (d *Device) Name() string { return d.info.Name }

// GUID is the node's GUID as a number (ibv_get_device_guid); never 0.
func (d *Device) GUID() uint64 { return d.info.GUID }

// NodeType tells what kind of node the device is.
func (d *Device) NodeType() ib.NodeType { return d.info.NodeType }

// Transport is the name of the transport as ibv_devinfo shows it.
func (d *Device) Transport() string { return d.info.Transport }

// NetDev is the name of the network interface behind the device, or "".
func (d *Device) NetDev() string { return d.info.NetDev }

// Info is all that is known of the device before it is open.
func (d *Device) Info() driver.DeviceInfo { return d.info }

// String is the name.
func (d *Device) String() string { return d.info.Name }

// Open opens the device (ibv_open_device). ENODEV: it is gone; ctx's error if that is
// done. The caller closes the Context.
func (d *Device) Open(ctx context.Context) (*Context, error) {
	if err := ctx.Err(); err != nil {
		return nil, opErr("open_device", err)
	}
	dev, err := d.provider.Open(ctx, d.info.Name)
	if err != nil {
		return nil, opErr("open_device", err)
	}
	return newContext(d, dev), nil
}

// NewContext makes a Context of a device that a provider has opened already:
// for tests and for devices that no list shows. Close closes it.
func NewContext(dev driver.Device) *Context {
	return newContext(&Device{info: dev.Info(), provider: opened{dev}}, dev)
}

// opened is a provider of one device that is open already.
type opened struct{ dev driver.Device }

func (o opened) Devices(context.Context) ([]driver.DeviceInfo, error) {
	return []driver.DeviceInfo{o.dev.Info()}, nil
}

func (o opened) Open(_ context.Context, name string) (driver.Device, error) {
	return nil, fmt.Errorf("device %s is open already: %w", name, syscall.EBUSY)
}
