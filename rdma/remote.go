package rdma

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// Remote names memory of the peer's: what the peer tells of a region that it has
// registered with RegisterWrite or RegisterRead, by a message or by private data.
type Remote struct {
	Addr uint64  // of the first byte
	Len  uint64  // bytes
	Key  ib.RKey // the right to access it
}

// remoteLen is the length of a Remote as bytes.
const remoteLen = 20

// RemoteOf is what the peer must know of a region of ours.
func RemoteOf(mr *verbs.MR) Remote { return Remote{Addr: mr.Addr(), Len: mr.Length(), Key: mr.RKey()} }

// At is the memory from an offset on. It is empty if there is none.
func (r Remote) At(offset uint64) Remote {
	offset = min(offset, r.Len)
	return Remote{Addr: r.Addr + offset, Len: r.Len - offset, Key: r.Key}
}

// AppendBinary appends the 20 bytes of address, length and key, big-endian.
func (r Remote) AppendBinary(b []byte) ([]byte, error) {
	b = binary.BigEndian.AppendUint64(b, r.Addr)
	b = binary.BigEndian.AppendUint64(b, r.Len)
	return binary.BigEndian.AppendUint32(b, uint32(r.Key)), nil
}

// MarshalBinary makes the bytes that UnmarshalBinary reads.
func (r Remote) MarshalBinary() ([]byte, error) { return r.AppendBinary(make([]byte, 0, remoteLen)) }

// UnmarshalBinary reads the first 20 bytes of b, whatever follows: private data have
// zeros there. EINVAL: there are fewer.
func (r *Remote) UnmarshalBinary(b []byte) error {
	if len(b) < remoteLen {
		return fmt.Errorf("rdma: b: %d bytes, want %d: %w", len(b), remoteLen, syscall.EINVAL)
	}
	r.Addr, r.Len, r.Key = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), ib.RKey(binary.BigEndian.Uint32(b[16:]))
	return nil
}

// RegisterWrite registers buf so that the peer may write it: give it RemoteOf the region. The
// memory is pinned until the region's Dereg, or Close. Nothing tells that the peer has written:
// have it send a message, which arrives after what it wrote before.
func (c *Conn) RegisterWrite(buf []byte) (*verbs.MR, error) {
	return c.register(buf, ib.AccessLocalWrite|ib.AccessRemoteWrite)
}

// RegisterRead registers buf so that the peer may read it, as RegisterWrite.
func (c *Conn) RegisterRead(buf []byte) (*verbs.MR, error) {
	return c.register(buf, ib.AccessLocalWrite|ib.AccessRemoteRead)
}

// Register registers buf for RemoteWrite and RemoteRead of our own; the peer cannot access
// it.
func (c *Conn) Register(buf []byte) (*verbs.MR, error) {
	return c.register(buf, ib.AccessLocalWrite)
}

func (c *Conn) register(buf []byte, access ib.Access) (*verbs.MR, error) {
	if err := c.enter(); err != nil {
		return nil, c.opError("register", err)
	}
	defer c.leave()
	mr, err := c.pd.RegMR(buf, access)
	if err != nil {
		return nil, c.opError("register", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.regions[mr] = struct{}{}
	return mr, nil
}

// Deregister ends a registration before Close does: when it returns nobody touches the
// memory any more.
func (c *Conn) Deregister(mr *verbs.MR) error {
	c.mu.Lock()
	delete(c.regions, mr)
	c.mu.Unlock()
	if mr == nil {
		return c.opError("deregister", fmt.Errorf("mr: is nil: %w", syscall.EINVAL))
	}
	return c.opError("deregister", mr.Dereg())
}

// RemoteWrite writes src to the peer's memory, and returns when it is there. src is part of
// the region mr, from Register for instance; with nil it is registered for the call. Of to as
// many bytes are written as src has. EINVAL: to is shorter; EACCES: the peer gave no
// right to it, which ends the connection, as does ctx's error before the data are there.
func (c *Conn) RemoteWrite(ctx context.Context, to Remote, src []byte, mr *verbs.MR) error {
	return c.access(ctx, "write", ib.WRRDMAWrite, to, src, mr)
}

// RemoteRead reads len(dst) bytes of the peer's memory into dst. All else is as with
// RemoteWrite.
func (c *Conn) RemoteRead(ctx context.Context, from Remote, dst []byte, mr *verbs.MR) error {
	return c.access(ctx, "read", ib.WRRDMARead, from, dst, mr)
}

func (c *Conn) access(ctx context.Context, op string, code ib.WROpcode, r Remote, buf []byte, mr *verbs.MR) error {
	if err := c.enter(); err != nil {
		return c.opError(op, err)
	}
	defer c.leave()
	if uint64(len(buf)) > r.Len {
		return c.opError(op, fmt.Errorf("%d bytes, the remote memory has %d: %w", len(buf), r.Len, syscall.EINVAL))
	}
	if mr == nil && len(buf) > 0 {
		var err error
		if mr, err = c.pd.RegMR(buf, ib.AccessLocalWrite); err != nil {
			return c.opError(op, err)
		}
		defer mr.Dereg()
	}
	x, err := c.sends.take(ctx)
	if err != nil {
		return c.opError(op, err)
	}
	x.waited, x.err = true, nil
	if code == ib.WRRDMARead {
		err = c.id.PostRead(x.index, buf, mr, ib.SendSignaled, r.Addr, r.Key)
	} else {
		err = c.id.PostWrite(x.index, buf, mr, ib.SendSignaled, r.Addr, r.Key)
	}
	if err == nil {
		err = c.finish(ctx, x)
	}
	c.sends.free <- x
	return c.opError(op, err)
}

// finish waits until the work of a slot is done. When ctx ends the wait the connection ends with
// it: the device would go on to use the caller's memory.
func (c *Conn) finish(ctx context.Context, x *slot) error {
	_, err := c.sends.wait(ctx, x.done)
	if err != nil {
		c.fail(fmt.Errorf("given up in the middle of a transfer: %w", syscall.ECONNABORTED))
		if e := c.id.QP().Modify(&ib.QPAttr{QPState: ib.QPStateErr}, ib.QPAttrState); e != nil {
			return errors.Join(err, e) // the device is gone
		}
		if _, e := c.sends.wait(context.Background(), x.done); e != nil {
			return errors.Join(err, e)
		}
		if x.err != nil {
			return err
		}
		return nil // it was just done
	}
	if x.err == nil {
		return nil
	}
	if why := c.failure(syscall.EPIPE); why != nil {
		return why
	}
	return x.err
}
