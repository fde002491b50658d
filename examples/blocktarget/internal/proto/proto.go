// Package proto is what block client and block target say to each other.
//
// The client connects with a Hello as private data and is accepted with the Geometry
// of the device. It then SENDs Requests, at most Geometry.Depth at a time, each about
// memory of its own: address and key of it are in the request, and the target READs or
// WRITEs it. A Response is the end of a request; the client may not touch the memory
// before. All numbers are big-endian.
package proto

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// Lengths of the messages in bytes.
const (
	HelloLen    = 8
	GeometryLen = 28
	RequestLen  = 40
	ResponseLen = 32
)

// TupleLen is the length of a protection tuple (T10-PI): guard, application tag,
// reference tag.
const TupleLen = 8

const (
	magic   = 0x56424C4B // "VBLK"
	version = 1
)

// Hello is the client's private data in the request to connect.
type Hello struct {
	Depth uint16 // requests that it wants to have under way; 0: as many as the target likes
}

// Append appends the message to b.
func (h *Hello) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, magic)
	b = binary.BigEndian.AppendUint16(b, version)
	return binary.BigEndian.AppendUint16(b, h.Depth)
}

// Parse reads the message; what follows it is ignored. EPROTO: it is none, or of another
// version.
func (h *Hello) Parse(b []byte) error {
	if err := head(b, HelloLen, "client"); err != nil {
		return err
	}
	h.Depth = binary.BigEndian.Uint16(b[6:])
	return nil
}

// Geometry is the target's private data when it accepts.
type Geometry struct {
	Depth      uint16 // requests that the client may have under way
	BlockSize  uint32 // bytes
	Blocks     uint64
	MaxLength  uint32 // bytes of data of a request
	Protection uint8  // T10-PI type 1 to 3; 0: the device has none
}

// Append appends the message to b.
func (g *Geometry) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, magic)
	b = binary.BigEndian.AppendUint16(b, version)
	b = binary.BigEndian.AppendUint16(b, g.Depth)
	b = binary.BigEndian.AppendUint32(b, g.BlockSize)
	b = binary.BigEndian.AppendUint64(b, g.Blocks)
	b = binary.BigEndian.AppendUint32(b, g.MaxLength)
	return append(b, g.Protection, 0, 0, 0)
}

// Parse reads the message; what follows it is ignored. EPROTO: it is none, or it
// describes no device.
func (g *Geometry) Parse(b []byte) error {
	if err := head(b, GeometryLen, "target"); err != nil {
		return err
	}
	*g = Geometry{
		Depth: binary.BigEndian.Uint16(b[6:]), BlockSize: binary.BigEndian.Uint32(b[8:]), Blocks: binary.BigEndian.Uint64(b[12:]),
		MaxLength: binary.BigEndian.Uint32(b[20:]), Protection: b[24],
	}
	if g.Depth == 0 || g.BlockSize == 0 || g.MaxLength < g.BlockSize || g.Protection > 3 || g.Blocks > 1<<62/uint64(g.BlockSize) {
		return fmt.Errorf("the target describes no block device: %+v: %w", *g, syscall.EPROTO)
	}
	return nil
}

// Size is the size of the device in bytes.
func (g *Geometry) Size() int64 { return int64(g.Blocks) * int64(g.BlockSize) }

func head(b []byte, n int, who string) error {
	switch {
	case len(b) < n || binary.BigEndian.Uint32(b) != magic:
		return fmt.Errorf("the other side is no block %s: %w", who, syscall.EPROTO)
	case binary.BigEndian.Uint16(b[4:]) != version:
		return fmt.Errorf("the other side speaks version %d, this one %d: %w", binary.BigEndian.Uint16(b[4:]), version, syscall.EPROTO)
	}
	return nil
}

// Op is what a request asks for.
type Op uint8

// Operations, as the client sees them: a READ of the device is a WRITE to its memory.
const (
	OpRead  Op = 1
	OpWrite Op = 2
	OpFlush Op = 3 // what was written is on the storage when it completes
)

func (o Op) String() string {
	switch o {
	case OpRead:
		return "READ"
	case OpWrite:
		return "WRITE"
	case OpFlush:
		return "FLUSH"
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// Flags of a request.
const (
	// FlagPI: in the client's memory, and so on the wire, a protection tuple follows each
	// block. Without it, on a device with protection, the target makes and checks them.
	FlagPI = 1 << 0
)

// Request is what the client sends.
type Request struct {
	Op     Op
	Flags  uint8
	Tag    uint32 // the client's; comes back in the response
	Offset uint64 // on the device, in bytes: a multiple of the block size
	Length uint32 // of the data in bytes, tuples not counted: a multiple of it too
	RKey   ib.RKey
	Addr   uint64
	// RefTag is the reference tag of the first block. Type 1: the low 32 bits of its
	// number. Type 2: the client's choice. AppTag is the application tag, compared where
	// AppMask has bits.
	RefTag  uint32
	AppTag  uint16
	AppMask uint16
}

// Put writes the message to b, which has RequestLen bytes.
func (r *Request) Put(b []byte) {
	_ = b[RequestLen-1]
	b[0], b[1], b[2], b[3] = uint8(r.Op), r.Flags, 0, 0
	binary.BigEndian.PutUint32(b[4:], r.Tag)
	binary.BigEndian.PutUint64(b[8:], r.Offset)
	binary.BigEndian.PutUint32(b[16:], r.Length)
	binary.BigEndian.PutUint32(b[20:], uint32(r.RKey))
	binary.BigEndian.PutUint64(b[24:], r.Addr)
	binary.BigEndian.PutUint32(b[32:], r.RefTag)
	binary.BigEndian.PutUint16(b[36:], r.AppTag)
	binary.BigEndian.PutUint16(b[38:], r.AppMask)
}

// Parse reads the message. What is wrong with it Check says.
func (r *Request) Parse(b []byte) error {
	if len(b) != RequestLen {
		return fmt.Errorf("a request of %d bytes, it has %d: %w", len(b), RequestLen, syscall.EPROTO)
	}
	*r = Request{
		Op: Op(b[0]), Flags: b[1], Tag: binary.BigEndian.Uint32(b[4:]), Offset: binary.BigEndian.Uint64(b[8:]),
		Length: binary.BigEndian.Uint32(b[16:]), RKey: ib.RKey(binary.BigEndian.Uint32(b[20:])), Addr: binary.BigEndian.Uint64(b[24:]),
		RefTag: binary.BigEndian.Uint32(b[32:]), AppTag: binary.BigEndian.Uint16(b[36:]), AppMask: binary.BigEndian.Uint16(b[38:]),
	}
	return nil
}

// Check says whether the device may be asked for it.
func (r *Request) Check(g *Geometry) Status {
	bs := uint64(g.BlockSize)
	switch {
	case r.Op == OpFlush:
		return StatusOK
	case r.Op != OpRead && r.Op != OpWrite,
		r.Flags&^FlagPI != 0, r.Flags&FlagPI != 0 && g.Protection == 0,
		r.Length == 0, r.Length > g.MaxLength, uint64(r.Length)%bs != 0, r.Offset%bs != 0:
		return StatusBadRequest
	case r.Offset/bs > g.Blocks || uint64(r.Length)/bs > g.Blocks-r.Offset/bs:
		return StatusOutOfRange
	case g.Protection == 1 && r.Flags&FlagPI != 0 && r.RefTag != uint32(r.Offset/bs):
		return StatusBadRequest
	}
	return StatusOK
}

// Status is how a request ended.
type Status uint16

// Statuses.
const (
	StatusOK Status = iota
	StatusBadRequest
	StatusOutOfRange
	StatusIO
	StatusBadGuard
	StatusBadRefTag
	StatusBadAppTag
	StatusTransfer
)

var statusText = [...]string{
	StatusOK:         "success",
	StatusBadRequest: "the request is malformed: offset and length are multiples of the block size, the length at most MaxLength",
	StatusOutOfRange: "the range is beyond the end of the device",
	StatusIO:         "the target's storage failed, see what the target says",
	StatusBadGuard:   "the guard of a block is wrong: the data has changed on the way",
	StatusBadRefTag:  "the reference tag of a block is wrong: it is another block than it should be",
	StatusBadAppTag:  "the application tag of a block is wrong",
	StatusTransfer:   "the target could not reach the client's memory",
}

func (s Status) String() string {
	if int(s) < len(statusText) {
		return statusText[s]
	}
	return fmt.Sprintf("status %d", uint16(s))
}

// StatusOf is the status of a block that was found to be wrong.
func StatusOf(t ib.SigErrType) Status {
	switch t {
	case ib.SigBadRefTag:
		return StatusBadRefTag
	case ib.SigBadAppTag:
		return StatusBadAppTag
	}
	return StatusBadGuard
}

// Response is the end of a request.
type Response struct {
	Status Status
	Tag    uint32
	Length uint32 // bytes of data that were transferred
	// Of a bad tuple: where the block is on the device in bytes, what its field should be
	// and what it was.
	Offset           uint64
	Expected, Actual uint32
}

// Put writes the message to b, which has ResponseLen bytes.
func (r *Response) Put(b []byte) {
	_ = b[ResponseLen-1]
	clear(b[:ResponseLen])
	binary.BigEndian.PutUint16(b, uint16(r.Status))
	binary.BigEndian.PutUint32(b[4:], r.Tag)
	binary.BigEndian.PutUint32(b[8:], r.Length)
	binary.BigEndian.PutUint32(b[12:], r.Expected)
	binary.BigEndian.PutUint32(b[16:], r.Actual)
	binary.BigEndian.PutUint64(b[24:], r.Offset)
}

// Parse reads the message.
func (r *Response) Parse(b []byte) error {
	if len(b) != ResponseLen {
		return fmt.Errorf("a response of %d bytes, it has %d: %w", len(b), ResponseLen, syscall.EPROTO)
	}
	*r = Response{
		Status: Status(binary.BigEndian.Uint16(b)), Tag: binary.BigEndian.Uint32(b[4:]), Length: binary.BigEndian.Uint32(b[8:]),
		Expected: binary.BigEndian.Uint32(b[12:]), Actual: binary.BigEndian.Uint32(b[16:]), Offset: binary.BigEndian.Uint64(b[24:]),
	}
	return nil
}

// ErrProtection is what the errors of bad tuples match.
var ErrProtection = errors.New("protection information is wrong")

// StatusError is a request that the target did not carry out.
type StatusError struct {
	Op       Op
	Request  Request
	Response Response
}

func (e *StatusError) Error() string {
	s := fmt.Sprintf("%v of %d bytes at %d: %v", e.Op, e.Request.Length, e.Request.Offset, e.Response.Status)
	if e.protection() {
		s += fmt.Sprintf(" (block at %d: expected %#x, got %#x)", e.Response.Offset, e.Response.Expected, e.Response.Actual)
	}
	return s
}

func (e *StatusError) protection() bool {
	s := e.Response.Status
	return s >= StatusBadGuard && s <= StatusBadAppTag
}

// Is reports whether the error is about protection information, or is EIO or EINVAL.
func (e *StatusError) Is(target error) bool {
	switch target {
	case ErrProtection:
		return e.protection()
	case syscall.EINVAL:
		return e.Response.Status == StatusBadRequest || e.Response.Status == StatusOutOfRange
	case syscall.EIO:
		return e.Response.Status != StatusBadRequest && e.Response.Status != StatusOutOfRange
	}
	return false
}
