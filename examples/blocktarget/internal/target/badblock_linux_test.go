package target

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/client"
	"github.com/verbena-rdma/verbena/examples/blocktarget/internal/proto"
	"github.com/verbena-rdma/verbena/provider/soft"
)

// guard is CRC-16/T10-DIF, bit by bit (polynomial 0x8BB7).
func guard(b []byte) (crc uint16) {
	for _, v := range b {
		crc ^= uint16(v) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x8BB7
			} else {
				crc <<= 1
			}
		}
	}
	return crc
}

const blockLen, wireLen = 512, 520

// wire is how blocks look in the memory of a client that makes tuples by itself.
func wire(data []byte, app uint16, ref uint32, step uint32) []byte {
	var out []byte
	for ; len(data) > 0; data = data[blockLen:] {
		out = append(out, data[:blockLen]...)
		out = binary.BigEndian.AppendUint16(out, guard(data[:blockLen]))
		out = binary.BigEndian.AppendUint16(out, app)
		out = binary.BigEndian.AppendUint32(out, ref)
		ref += step
	}
	return out
}

// Whichever bit is wrong of whichever block: the request ends with what is wrong and
// where, nothing of it is stored, and the connection goes on.
func TestBadBlockIsNeverAcknowledged(t *testing.T) {
	if guard([]byte("123456789")) != 0xD0DB {
		t.Fatal("the test's guard is wrong")
	}
	const blocks, first = 64, 40
	data := random(blocks*blockLen, 3)
	for prot := 1; prot <= 3; prot++ {
		r := newRig(t, memoryStore(t, 1<<20, blockLen, true), Config{Protection: prot, MaxLength: 64 << 10}, soft.Limits{})
		c := r.raw(blocks * wireLen)
		ref, step := uint32(first), uint32(1)
		if prot == 2 {
			ref = 0xFFFFFFF0 // wraps
		}
		if prot == 3 {
			ref, step = 0xABCD, 0
		}
		write := proto.Request{Op: proto.OpWrite, Flags: proto.FlagPI, Offset: first * blockLen, Length: blocks * blockLen, RefTag: ref}
		good := wire(data, 0x1234, ref, step)
		before := random(blocks*blockLen, 4)
		if prot != 2 {
			write.RefTag = first
		}
		// What is there before, by the target's own tuples.
		old := write
		old.Flags = 0
		copy(c.mem.Bytes(), before)
		if resp := c.do(old); resp.Status != proto.StatusOK {
			t.Fatal(resp)
		}
		bad := 0
		for i, at := range []struct {
			block, byte int
			status      proto.Status
		}{
			{0, 0, proto.StatusBadGuard},
			{0, 511, proto.StatusBadGuard},
			{17, 300, proto.StatusBadGuard},
			{63, 511, proto.StatusBadGuard},
			{0, 512, proto.StatusBadGuard},
			{31, 513, proto.StatusBadGuard},
			{63, 513, proto.StatusBadGuard},
			{0, 516, proto.StatusBadRefTag},
			{5, 519, proto.StatusBadRefTag},
			{63, 517, proto.StatusBadRefTag},
			{9, 514, proto.StatusBadAppTag},
			{63, 515, proto.StatusBadAppTag},
		} {
			want := at.status
			req := write
			req.AppTag, req.AppMask = 0x1234, 0xFFFF
			if want == proto.StatusBadRefTag && prot == 3 {
				continue // which type 3 does not check
			}
			copy(c.mem.Bytes(), good)
			c.mem.Bytes()[at.block*wireLen+at.byte] ^= 1 << (i % 8)
			resp := c.do(req)
			bad++
			if resp.Status != want || resp.Offset != uint64(first+at.block)*blockLen || resp.Expected == resp.Actual {
				t.Errorf("type %d, byte %d of block %d: %+v, want status %d", prot, at.byte, at.block, resp, want)
			}
			got := make([]byte, len(before))
			if err := r.store.Read([][]byte{got}, nil, first); err != nil || !bytes.Equal(got, before) {
				t.Fatalf("type %d, byte %d of block %d: something was stored (%v)", prot, at.byte, at.block, err)
			}
		}
		// The right one is stored, with its tuples as they came.
		copy(c.mem.Bytes(), good)
		if resp := c.do(write); resp.Status != proto.StatusOK {
			t.Errorf("type %d: %+v", prot, resp)
		}
		got, tuples := make([]byte, len(data)), make([]byte, blocks*proto.TupleLen)
		if err := r.store.Read([][]byte{got}, [][]byte{tuples}, first); err != nil || !bytes.Equal(got, data) {
			t.Errorf("type %d: not stored (%v)", prot, err)
		}
		for i := range blocks {
			if !bytes.Equal(tuples[i*8:i*8+8], good[i*wireLen+blockLen:][:8]) {
				t.Fatalf("type %d: tuple %d % x", prot, i, tuples[i*8:i*8+8])
			}
		}
		// And comes back so.
		clear(c.mem.Bytes())
		read := write
		read.Op = proto.OpRead
		if resp := c.do(read); resp.Status != proto.StatusOK || !bytes.Equal(c.mem.Bytes(), good) {
			t.Errorf("type %d: read %+v, or other bytes", prot, resp)
		}
		// A block that has changed in the store is not acknowledged to anybody.
		got[20*blockLen+5] ^= 0x10
		if err := r.store.Write([][]byte{got}, [][]byte{tuples}, first); err != nil {
			t.Fatal(err)
		}
		for _, flags := range []uint8{proto.FlagPI, 0} {
			read.Flags = flags
			bad++
			if resp := c.do(read); resp.Status != proto.StatusBadGuard || resp.Offset != (first+20)*blockLen {
				t.Errorf("type %d, flags %d: %+v", prot, flags, resp)
			}
		}
		if s := r.target.Stats(); s.BadProtection != uint64(bad) {
			t.Errorf("%+v, want %d", s, bad)
		}
		if prot == 2 {
			continue // the client's own reference tags are the blocks' numbers
		}
		cl := r.dial(client.Config{Length: 4096})
		back := make(memWriter, blocks*blockLen)
		err := cl.Read(t.Context(), back, blocks*blockLen, first*blockLen, nil)
		if !errors.Is(err, proto.ErrProtection) {
			t.Errorf("type %d: %v", prot, err)
		}
		if n := 20 * blockLen &^ 4095; !bytes.Equal(back[n:n+4096], make([]byte, 4096)) {
			t.Error("the client wrote what was wrong")
		}
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A block that was never written checks nothing.
func TestFreshDevice(t *testing.T) {
	for prot := 1; prot <= 3; prot++ {
		r := newRig(t, memoryStore(t, 1<<20, blockLen, true), Config{Protection: prot}, soft.Limits{})
		cl := r.dial(client.Config{})
		back := make(memWriter, 1<<20)
		if err := cl.Read(t.Context(), back, 1<<20, 0, nil); err != nil || !bytes.Equal(back, make([]byte, 1<<20)) {
			t.Errorf("type %d: %v", prot, err)
		}
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	}
}
