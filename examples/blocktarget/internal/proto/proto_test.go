package proto

import (
	"bytes"
	"encoding/hex"
	"errors"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
)

// The bytes of each message, written by hand: others speak it too.
func TestMessagesOnTheWire(t *testing.T) {
	hello := Hello{Depth: 7}
	if got := hex.EncodeToString(hello.Append(nil)); got != "56424c4b"+"0001"+"0007" {
		t.Error(got)
	}
	g := Geometry{Depth: 32, BlockSize: 512, Blocks: 0x0102030405, MaxLength: 1 << 20, Protection: 2}
	if got := hex.EncodeToString(g.Append(nil)); got != "56424c4b"+"0001"+"0020"+"00000200"+"0000000102030405"+"00100000"+"02000000" {
		t.Error(got)
	}
	var b [RequestLen]byte
	r := Request{
		Op: OpWrite, Flags: FlagPI, Tag: 9, Offset: 0x1122334455667700, Length: 4096, RKey: 0xAABBCCDD, Addr: 0x7F00112233445566,
		RefTag: 0xDEADBEEF, AppTag: 0x1234, AppMask: 0xFF00,
	}
	r.Put(b[:])
	if got := hex.EncodeToString(b[:]); got != "02010000"+"00000009"+"1122334455667700"+"00001000"+"aabbccdd"+"7f00112233445566"+"deadbeef"+"1234ff00" {
		t.Error(got)
	}
	var w [ResponseLen]byte
	a := Response{Status: StatusBadGuard, Tag: 9, Length: 512, Offset: 1024, Expected: 0x1234, Actual: 0x4321}
	a.Put(w[:])
	if got := hex.EncodeToString(w[:]); got != "00040000"+"00000009"+"00000200"+"00001234"+"00004321"+"00000000"+"0000000000000400" {
		t.Error(got)
	}
	var hello2 Hello
	var g2 Geometry
	var r2 Request
	var a2 Response
	// Private data arrives with zeros behind it.
	err := errors.Join(hello2.Parse(append(hello.Append(nil), 0, 0)), g2.Parse(append(g.Append(nil), make([]byte, 90)...)), r2.Parse(b[:]), a2.Parse(w[:]))
	if err != nil || hello2 != hello || g2 != g || r2 != r || a2 != a {
		t.Error(err, hello2, g2, r2, a2)
	}
}

func TestBadMessages(t *testing.T) {
	var h Hello
	var g Geometry
	var r Request
	var a Response
	good := (&Geometry{Depth: 1, BlockSize: 512, Blocks: 1, MaxLength: 512}).Append(nil)
	change := func(i int, v byte) []byte {
		b := bytes.Clone(good)
		b[i] = v
		return b
	}
	for what, err := range map[string]error{
		"no hello":        h.Parse(nil),
		"other magic":     h.Parse([]byte("VBLX\x00\x01\x00\x01")),
		"other version":   h.Parse([]byte("VBLK\x00\x02\x00\x01")),
		"short geometry":  g.Parse(good[:GeometryLen-1]),
		"no depth":        g.Parse(change(7, 0)),
		"no block size":   g.Parse(change(10, 0)),
		"length < block":  g.Parse(change(22, 1)),
		"protection":      g.Parse(change(24, 4)),
		"too many blocks": g.Parse(change(12, 0xFF)),
		"short request":   r.Parse(make([]byte, RequestLen-1)),
		"long request":    r.Parse(make([]byte, RequestLen+1)),
		"short response":  a.Parse(make([]byte, ResponseLen-1)),
	} {
		if !errors.Is(err, syscall.EPROTO) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := g.Parse(good); err != nil || g.Size() != 512 {
		t.Error(err)
	}
}

func TestRequestCheck(t *testing.T) {
	plain := Geometry{Depth: 1, BlockSize: 512, Blocks: 100, MaxLength: 8192}
	pi1, pi2 := plain, plain
	pi1.Protection, pi2.Protection = 1, 2
	for _, c := range []struct {
		name string
		g    *Geometry
		r    Request
		want Status
	}{
		{"read", &plain, Request{Op: OpRead, Length: 512}, StatusOK},
		{"last block", &plain, Request{Op: OpWrite, Length: 512, Offset: 99 * 512}, StatusOK},
		{"longest", &plain, Request{Op: OpWrite, Length: 8192}, StatusOK},
		{"flush", &plain, Request{Op: OpFlush}, StatusOK},
		{"unknown", &plain, Request{Op: 9, Length: 512}, StatusBadRequest},
		{"no operation", &plain, Request{Length: 512}, StatusBadRequest},
		{"nothing", &plain, Request{Op: OpRead}, StatusBadRequest},
		{"too long", &plain, Request{Op: OpRead, Length: 8704}, StatusBadRequest},
		{"half a block", &plain, Request{Op: OpRead, Length: 256}, StatusBadRequest},
		{"odd offset", &plain, Request{Op: OpRead, Length: 512, Offset: 1}, StatusBadRequest},
		{"unknown flag", &pi1, Request{Op: OpRead, Length: 512, Flags: 2}, StatusBadRequest},
		{"tuples without protection", &plain, Request{Op: OpRead, Length: 512, Flags: FlagPI}, StatusBadRequest},
		{"one too far", &plain, Request{Op: OpRead, Length: 1024, Offset: 99 * 512}, StatusOutOfRange},
		{"behind the end", &plain, Request{Op: OpRead, Length: 512, Offset: 100 * 512}, StatusOutOfRange},
		{"far behind it", &plain, Request{Op: OpRead, Length: 512, Offset: 1<<64 - 512}, StatusOutOfRange},
		{"type 1", &pi1, Request{Op: OpRead, Length: 512, Offset: 3 * 512, Flags: FlagPI, RefTag: 3}, StatusOK},
		{"type 1, another block's tag", &pi1, Request{Op: OpRead, Length: 512, Offset: 3 * 512, Flags: FlagPI, RefTag: 4}, StatusBadRequest},
		{"type 1, tags by the target", &pi1, Request{Op: OpRead, Length: 512, Offset: 3 * 512}, StatusOK},
		{"type 2, any tag", &pi2, Request{Op: OpRead, Length: 512, Offset: 3 * 512, Flags: FlagPI, RefTag: 77}, StatusOK},
	} {
		if got := c.r.Check(c.g); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestStatusErrors(t *testing.T) {
	for s := StatusOK + 1; s < Status(len(statusText)); s++ {
		err := error(&StatusError{Op: OpRead, Response: Response{Status: s}})
		inval, prot := s <= StatusOutOfRange, s >= StatusBadGuard && s <= StatusBadAppTag
		if errors.Is(err, syscall.EINVAL) != inval || errors.Is(err, syscall.EIO) == inval || errors.Is(err, ErrProtection) != prot || s.String() == "" {
			t.Errorf("%v", err)
		}
	}
	if Status(99).String() != "status 99" || Op(9).String() != "Op(9)" || OpFlush.String() != "FLUSH" {
		t.Error("names")
	}
	for typ, want := range map[ib.SigErrType]Status{ib.SigBadGuard: StatusBadGuard, ib.SigBadRefTag: StatusBadRefTag, ib.SigBadAppTag: StatusBadAppTag} {
		if StatusOf(typ) != want {
			t.Error(typ)
		}
	}
}

// Whatever a client sends, what passes the check is inside the device.
func FuzzRequest(f *testing.F) {
	f.Add(make([]byte, RequestLen), uint64(100), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, blocks uint64, prot uint8) {
		g := Geometry{Depth: 1, BlockSize: 512, Blocks: blocks % (1 << 50), MaxLength: 1 << 20, Protection: prot % 4}
		var r Request
		if r.Parse(b) != nil || r.Check(&g) != StatusOK || r.Op == OpFlush {
			return
		}
		if end := r.Offset + uint64(r.Length); end < r.Offset || end > g.Blocks*512 || r.Length > g.MaxLength || r.Length == 0 {
			t.Fatalf("%+v on %+v", r, g)
		}
		var again [RequestLen]byte
		r.Put(again[:])
		b[2], b[3] = 0, 0 // reserved
		if !bytes.Equal(again[:], b) {
			t.Fatal("written otherwise than read")
		}
	})
}
