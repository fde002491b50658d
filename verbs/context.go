package verbs

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Context is an open device (struct ibv_context). Its methods after Close give
// net.ErrClosed, which here is EIO too.
type Context struct {
	life
	device *Device
	dev    driver.Device
	events eventQueue[*AsyncEvent]
}

func newContext(d *Device, dev driver.Device) *Context {
	c := &Context{device: d, dev: dev}
	c.events.init()
	if r, ok := dev.(driver.Remover); ok {
		c.events.over = r.Removed()
	}
	dev.Events(func(t ib.EventType) {
		e := &AsyncEvent{Type: t}
		switch t {
		case ib.EventPortActive, ib.EventPortErr, ib.EventLIDChange, ib.EventPKeyChange, ib.EventSMChange,
			ib.EventClientReregister, ib.EventGIDChange:
			e.Port = 1
		}
		c.events.push(e, nil)
	})
	return c
}

// Device is the device that was opened.
func (c *Context) Device() *Device { return c.device }

// Driver is the provider's object behind the Context, for what only one provider
// has. It must not be closed.
func (c *Context) Driver() driver.Device { return c.dev }

func (c *Context) check(op string) error {
	if !c.alive() {
		return opErr(op, errDeviceClosed)
	}
	if c.Removed() {
		return opErr(op, errDeviceGone)
	}
	return nil
}

// Removed reports whether the device has gone away under the program, which
// ib.EventDeviceFatal told: then calls that need it fail with EIO, queue pairs
// are in ERR and their work is flushed. Objects can be destroyed as ever.
func (c *Context) Removed() bool {
	select {
	case <-c.events.over: // nil, which blocks, where a device cannot go away
		return true
	default:
		return false
	}
}

// QueryDevice tells the device's limits and abilities (ibv_query_device).
func (c *Context) QueryDevice() (ib.DeviceAttr, error) {
	if err := c.check("query_device"); err != nil {
		return ib.DeviceAttr{}, err
	}
	return c.dev.Query(), nil
}

// QueryPort tells the state of a port, counted from 1 (ibv_query_port). EINVAL:
// there is no such port.
func (c *Context) QueryPort(port uint8) (ib.PortAttr, error) {
	if err := c.check("query_port"); err != nil {
		return ib.PortAttr{}, err
	}
	a, err := c.dev.QueryPort(port)
	return a, opErr("query_port", err)
}

// QueryGID gives one GID (ibv_query_gid). EINVAL: index out of range; ENODATA:
// the entry is empty.
func (c *Context) QueryGID(port uint8, index int) (ib.GID, error) {
	if err := c.check("query_gid"); err != nil {
		return ib.GID{}, err
	}
	e, err := c.dev.GIDEntry(port, index)
	return e.GID, opErr("query_gid", err)
}

// QueryGIDEntry gives one GID with its type and interface (ibv_query_gid_ex).
// EINVAL: index out of range; ENODATA: the entry is empty.
func (c *Context) QueryGIDEntry(port uint8, index int) (ib.GIDEntry, error) {
	if err := c.check("query_gid_ex"); err != nil {
		return ib.GIDEntry{}, err
	}
	e, err := c.dev.GIDEntry(port, index)
	return e, opErr("query_gid_ex", err)
}

// QueryGIDTable lists the entries of all ports that are not empty
// (ibv_query_gid_table).
func (c *Context) QueryGIDTable() ([]ib.GIDEntry, error) {
	const op = "query_gid_table"
	if err := c.check(op); err != nil {
		return nil, err
	}
	var list []ib.GIDEntry
	for port := 1; port <= int(c.dev.Query().PhysPortCnt); port++ {
		attr, err := c.dev.QueryPort(uint8(port))
		if err != nil {
			return nil, opErr(op, err)
		}
		for i := range attr.GIDTblLen {
			e, err := c.dev.GIDEntry(uint8(port), i)
			switch {
			case errors.Is(err, ib.ErrNoData):
			case err != nil:
				return nil, opErr(op, err)
			default:
				list = append(list, e)
			}
		}
	}
	return list, nil
}

// FindGIDIndex gives the index of a GID of the given type in a port's table
// (ibv_find_gid_index). Those of software devices are of type ib.GIDTypeRoCEv2.
// ENODATA: the table does not have it.
func (c *Context) FindGIDIndex(port uint8, gid ib.GID, typ ib.GIDType) (int, error) {
	const op = "find_gid_index"
	if err := c.check(op); err != nil {
		return 0, err
	}
	attr, err := c.dev.QueryPort(port)
	if err != nil {
		return 0, opErr(op, err)
	}
	other := ""
	for i := range attr.GIDTblLen {
		e, err := c.dev.GIDEntry(port, i)
		if err != nil || e.GID != gid {
			continue
		}
		if e.Type == typ {
			return i, nil
		}
		other = fmt.Sprintf("%v is there as %v (index %d), not as %v", gid.Addr(), e.Type, i, typ)
	}
	if other != "" {
		return 0, paramErr(op, "gid", other, ib.ErrNoData)
	}
	return 0, paramErr(op, "gid", gid.Addr().String()+" is not in the table of the port", ib.ErrNoData)
}

// QueryPKey gives a partition key (ibv_query_pkey). EINVAL: no such index.
func (c *Context) QueryPKey(port uint8, index int) (ib.PKey, error) {
	if err := c.check("query_pkey"); err != nil {
		return 0, err
	}
	k, err := c.dev.PKey(port, index)
	return k, opErr("query_pkey", err)
}

// PKeyIndex gives the index of exactly this partition key in a port's table
// (ibv_get_pkey_index). EINVAL: the table does not have it.
func (c *Context) PKeyIndex(port uint8, key ib.PKey) (int, error) {
	const op = "get_pkey_index"
	if err := c.check(op); err != nil {
		return 0, err
	}
	attr, err := c.dev.QueryPort(port)
	if err != nil {
		return 0, opErr(op, err)
	}
	for i := range attr.PKeyTblLen {
		if k, err := c.dev.PKey(port, i); err == nil && k == key {
			return i, nil
		}
	}
	return 0, paramErr(op, "pkey", fmt.Sprintf("0x%04x is not in the table of the port", uint16(key)), syscall.EINVAL)
}

// AllocPD makes a protection domain (ibv_alloc_pd). ENOMEM: there are too many.
func (c *Context) AllocPD() (*PD, error) {
	const op = "alloc_pd"
	if !c.hold(aPD) {
		return nil, opErr(op, errDeviceClosed)
	}
	p, err := c.dev.AllocPD()
	if err != nil {
		c.drop(aPD)
		return nil, opErr(op, err)
	}
	return &PD{ctx: c, pd: p}, nil
}

// Close closes the device (ibv_close_device). EBUSY: it still has objects, and
// goes on working. With any other error it is closed all the same, and something
// was lost, as the end of a capture is on a full disk. A GetAsyncEvent that waits
// returns.
func (c *Context) Close() error {
	const op = "close_device"
	var lost error
	err := c.end(context.Background(), func() error {
		err := c.dev.Close()
		if errors.Is(err, syscall.EBUSY) {
			return err
		}
		lost = err
		return nil
	}, nil, c.events.close)
	if err == nil {
		err = lost
	}
	return opErr(op, err)
}
