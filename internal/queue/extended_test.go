package queue

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

func TestCheckExtended(t *testing.T) {
	flush := driver.SendWR{Opcode: ib.WRFlush, FlushType: ib.FlushGlobal | ib.FlushPersistent, FlushLevel: ib.FlushMR, Length: ib.MaxMsgSize}
	word := driver.SendWR{Opcode: ib.WRAtomicWrite, Flags: ib.SendInline, InlineData: make([]byte, 8), RemoteAddr: 1<<64 - 8}
	for _, c := range []struct {
		name, field string // field "" = it is right
		wr          driver.SendWR
		change      func(*driver.SendWR)
	}{
		{"flush", "", flush, nil},
		{"empty range", "", flush, func(w *driver.SendWR) { w.Length, w.FlushLevel = 0, ib.FlushRange }},
		{"no type", "FlushType", flush, func(w *driver.SendWR) { w.FlushType = 0 }},
		{"unknown type", "FlushType", flush, func(w *driver.SendWR) { w.FlushType = 5 }},
		{"unknown level", "FlushLevel", flush, func(w *driver.SendWR) { w.FlushLevel = 2 }},
		{"too long", "Length", flush, func(w *driver.SendWR) { w.Length++ }},
		{"payload", "SGList", flush, func(w *driver.SendWR) { w.SGList = sges(8) }},
		{"empty list", "SGList", flush, func(w *driver.SendWR) { w.SGList = sges(0) }},
		{"inline flush", "Flags", flush, func(w *driver.SendWR) { w.Flags = ib.SendInline }},
		{"inline word", "", word, nil}, // though the queue has no space for inline data
		{"word in memory", "", word, func(w *driver.SendWR) { w.Flags, w.InlineData, w.SGList = 0, nil, sges(3, 5) }},
		{"word in memory, inline", "", word, func(w *driver.SendWR) { w.InlineData, w.SGList = nil, sges(8) }},
		{"no word", "InlineData", word, func(w *driver.SendWR) { w.InlineData = nil }},
		{"short word", "InlineData", word, func(w *driver.SendWR) { w.InlineData = make([]byte, 7) }},
		{"long word", "InlineData", word, func(w *driver.SendWR) { w.InlineData = make([]byte, 9) }},
		{"short word in memory", "SGList", word, func(w *driver.SendWR) { w.Flags, w.InlineData, w.SGList = 0, nil, sges(4) }},
		{"odd address", "RemoteAddr", word, func(w *driver.SendWR) { w.RemoteAddr = 4 }},
	} {
		if c.change != nil {
			c.change(&c.wr)
		}
		for _, typ := range []ib.QPType{ib.RC, ib.XRCSend} {
			err := Check(&c.wr, typ, &Limits{MaxSGE: 4, Ops: OpsBase | OpsExtended})
			var we *WRError
			switch {
			case c.field == "":
				if err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
			case !errors.As(err, &we) || we.Field != c.field || !errors.Is(err, syscall.EINVAL):
				t.Errorf("%s: %v, want a complaint about %s", c.name, err, c.field)
			}
		}
		if err := Check(&c.wr, ib.UC, &Limits{MaxSGE: 4, Ops: OpsBase | OpsExtended}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s on UC: %v", c.name, err)
		}
		if err := Check(&c.wr, ib.RC, &Limits{MaxSGE: 4, Ops: OpsBase}); !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("%s, not offered: %v", c.name, err)
		}
	}
}

func TestSQExtended(t *testing.T) {
	q := NewSQ(2, 1, 0)
	word := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	for range 5 {
		w, err := q.PushInline(&driver.SendWR{Opcode: ib.WRAtomicWrite, Flags: ib.SendInline, InlineData: word}, nil)
		if err != nil || w.Length != 8 || !bytes.Equal(w.Inline, word) {
			t.Fatalf("%v, %+v", err, w)
		}
		f := q.Push(&driver.SendWR{Opcode: ib.WRFlush, FlushType: ib.FlushGlobal, FlushLevel: ib.FlushMR, Length: 77})
		if f.Length != 77 || f.FlushType != uint8(ib.FlushGlobal) || f.FlushLevel != uint8(ib.FlushMR) {
			t.Fatalf("%+v", f)
		}
		word[0]++
		if w.Inline[0] == word[0] {
			t.Fatal("the word was not copied")
		}
		q.Pop()
		q.Pop()
	}
	pieces := [][]byte{word[:3], word[3:]}
	w, err := q.PushInline(&driver.SendWR{Opcode: ib.WRAtomicWrite, Flags: ib.SendInline, SGList: sges(3, 5)}, pieces)
	if err != nil || !bytes.Equal(w.Inline, word) {
		t.Errorf("%v, %+v", err, w)
	}
}
