package transport

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/internal/mem"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// TestCursor: pieces taken in any portions are the list's bytes in order, and
// Seek finds the same place as walking.
func TestCursor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, pd := mem.NewTable(16, 1), mem.NewPD()
		buf := make([]byte, 300)
		for i := range buf {
			buf[i] = byte(i)
		}
		r, err := table.Register(pd, buf, mem.Address(buf), ib.AccessLocalWrite)
		if err != nil {
			t.Fatal(err)
		}
		defer table.Close()
		var sgl []driver.SGE
		var want []byte
		for range rapid.IntRange(0, 5).Draw(t, "elements") {
			off := rapid.IntRange(0, 200).Draw(t, "off")
			n := rapid.IntRange(0, 100).Draw(t, "n")
			sgl = append(sgl, driver.SGE{Addr: r.Addr() + uint64(off), Length: uint32(n), LKey: r.LKey()})
			want = append(want, buf[off:off+n]...)
		}
		if ListLen(sgl) != uint64(len(want)) {
			t.Fatalf("ListLen %d, want %d", ListLen(sgl), len(want))
		}
		var c Cursor
		var got []byte
		for len(got) < len(want) {
			n := rapid.IntRange(1, len(want)-len(got)).Draw(t, "take")
			var s Cursor
			s.Seek(sgl, uint64(len(got)))
			from := len(got)
			for _, cur := range []*Cursor{&s, &c} {
				pieces, status := cur.Pieces(table, pd, sgl, uint64(n), true, nil)
				if status != ib.WCSuccess {
					t.Fatal(status)
				}
				got = append(got[:from], bytes.Join(pieces, nil)...)
				if !bytes.Equal(got[from:], want[from:from+n]) {
					t.Fatalf("bytes %d to %d differ", from, from+n)
				}
			}
		}
		if _, status := c.Pieces(table, pd, sgl, 1, true, nil); status != ib.WCLocLenErr {
			t.Fatalf("beyond the list: %v", status)
		}
	})
}

func TestCursorErrors(t *testing.T) {
	table, pd := mem.NewTable(16, 1), mem.NewPD()
	buf := make([]byte, 64)
	r, err := table.Register(pd, buf, mem.Address(buf), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	for name, s := range map[string]driver.SGE{
		"key":    {Addr: r.Addr(), Length: 8, LKey: r.LKey() + 1},
		"bounds": {Addr: r.Addr() + 60, Length: 8, LKey: r.LKey()},
		"rights": {Addr: r.Addr(), Length: 8, LKey: r.LKey()}, // no local write
	} {
		var c Cursor
		if _, status := c.Pieces(table, pd, []driver.SGE{s}, 8, true, nil); status != ib.WCLocProtErr {
			t.Errorf("%s: %v, want %v", name, status, ib.WCLocProtErr)
		}
	}
	var c Cursor
	if _, status := c.Pieces(table, pd, []driver.SGE{{LKey: 0xBAD}}, 0, true, nil); status != ib.WCSuccess {
		t.Errorf("an element of no bytes was looked up: %v", status)
	}
}

func TestScatter(t *testing.T) {
	a, b := make([]byte, 3), make([]byte, 5)
	if err := Scatter([][]byte{a, b}, []byte("abcdefg")); err != nil {
		t.Fatal(err)
	}
	if string(a) != "abc" || string(b) != "defg\x00" {
		t.Errorf("%q %q", a, b)
	}
}
