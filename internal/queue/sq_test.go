package queue

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

type fakeAH struct{ driver.AH }

func TestSQCopiesTheRequest(t *testing.T) {
	q := NewSQ(4, 3, 64)
	ah := &fakeAH{}
	sgl := []driver.SGE{{Addr: 1, Length: math.MaxUint32, LKey: 2}, {Addr: 3, Length: 0, LKey: 4}, {Addr: 5, Length: math.MaxUint32, LKey: 6}}
	wr := driver.SendWR{
		WRID: 1, SGList: slices.Clone(sgl), Opcode: ib.WRSendWithImm, Flags: ib.SendSignaled | ib.SendFence, ImmData: 2,
		InvalidateRKey: 3, RemoteAddr: 4, RKey: 5, CompareAdd: 6, Swap: 7, AH: ah, RemoteQPN: 8, RemoteQKey: 9,
	}
	w := q.Push(&wr)
	// Case 63: what the application changes after the post does not count.
	clear(wr.SGList)
	want := WQE{
		WRID: 1, SGL: sgl, Op: ib.WRSendWithImm, Flags: ib.SendSignaled | ib.SendFence, Imm: 2, InvKey: 3, RemoteAddr: 4,
		RKey: 5, CompareAdd: 6, Swap: 7, AH: ah, RemoteQPN: 8, RemoteQKey: 9, Signaled: true, Length: 2 * math.MaxUint32,
	}
	same := cmp.Comparer(func(a, b driver.AH) bool { return a == b })
	if d := cmp.Diff(want, *w, same); d != "" {
		t.Fatal(d)
	}
	q.Pop()
	if w.AH != nil {
		t.Error("a popped request keeps its address handle alive")
	}
	dirty := reflect.ValueOf(w).Elem() // every field, those that the protocol adds too
	for i := range dirty.NumField() {
		switch f := dirty.Field(i); f.Kind() {
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 3, 3))
		case reflect.Interface:
			f.Set(reflect.ValueOf(ah))
		case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
			f.SetInt(1)
		default:
			f.SetUint(1)
		}
	}
	for range 4 {
		w = q.Push(&driver.SendWR{WRID: 5})
	}
	if d := cmp.Diff(WQE{WRID: 5}, *w, same, cmp.Transformer("empty", func(s []driver.SGE) int { return len(s) })); d != "" {
		t.Fatal("the slot remembers: ", d)
	}
	q = NewSQ(1, 1, 0)
	q.SigAll = true
	if !q.Push(&driver.SendWR{}).Signaled {
		t.Error("sq_sig_all")
	}
}

func TestSQDepth(t *testing.T) {
	for _, c := range [][2]int{{0, 0}, {1, 1}, {2, 2}, {3, 4}, {16, 16}, {17, 32}, {1000, 1024}} {
		q := NewSQ(c[0], 1, 1)
		if q.Cap() != c[1] {
			t.Errorf("depth %d gives %d", c[0], q.Cap())
		}
		for i := range c[1] {
			if q.Push(&driver.SendWR{WRID: uint64(i)}) == nil {
				t.Fatalf("depth %d: full after %d", c[0], i)
			}
		}
		if q.Push(&driver.SendWR{}) != nil {
			t.Errorf("depth %d takes more", c[0])
		}
		if _, err := q.PushInline(&driver.SendWR{Flags: ib.SendInline}, nil); !errors.Is(err, syscall.ENOMEM) {
			t.Errorf("depth %d: %v", c[0], err)
		}
	}
}

func TestCase53_InlineGathersAllElements(t *testing.T) {
	q := NewSQ(4, 3, 10)
	pieces := [][]byte{[]byte("abc"), []byte("de"), []byte("fgh")}
	wr := driver.SendWR{Flags: ib.SendInline, SGList: make([]driver.SGE, 3)}
	w, err := q.PushInline(&wr, pieces)
	if err != nil || string(w.Inline) != "abcdefgh" || w.Length != 8 || len(w.SGL) != 0 {
		t.Fatalf("%v %q %d", err, w.Inline, w.Length)
	}
	copy(pieces[0], "xyz") // the buffer may be reused at once
	if string(w.Inline) != "abcdefgh" {
		t.Fatal("the payload is not a copy")
	}
	w2, err := q.PushInline(&driver.SendWR{Flags: ib.SendInline, InlineData: []byte("0123456789")}, nil)
	if err != nil || string(w2.Inline) != "0123456789" || string(w.Inline) != "abcdefgh" {
		t.Fatalf("%v %q %q", err, w2.Inline, w.Inline)
	}
	if w, err = q.PushInline(&driver.SendWR{Flags: ib.SendInline}, nil); err != nil || len(w.Inline) != 0 {
		t.Fatal("an empty message", err)
	}
	if _, err = q.PushInline(&wr, [][]byte{make([]byte, 8), make([]byte, 3)}); !errors.Is(err, syscall.EINVAL) || q.Len() != 3 {
		t.Fatalf("too long: %v, %d requests", err, q.Len())
	}
}

func TestCase55_ENOMEMMeansFull(t *testing.T) {
	q := NewSQ(16, 1, 8)
	for i := range 16 {
		wr := driver.SendWR{WRID: uint64(i)}
		if i%3 == 0 {
			wr.Flags = ib.SendSignaled
		}
		q.Push(&wr)
	}
	if q.Push(&driver.SendWR{}) != nil || !errors.Is(ErrFull, syscall.ENOMEM) {
		t.Fatal("the 17th is taken")
	}
	q.Pop()
	if q.Push(&driver.SendWR{WRID: 17}) == nil {
		t.Fatal("no room after a completion")
	}
	l := Limits{MaxSGE: 1, MaxInline: 8, Ops: OpsBase}
	for _, wr := range []driver.SendWR{
		{Opcode: ib.WRSend, SGList: make([]driver.SGE, 2)},
		{Opcode: ib.WRSend, Flags: ib.SendInline, InlineData: make([]byte, 9)},
	} {
		if err := Check(&wr, ib.RC, &l); !errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOMEM) {
			t.Errorf("%v", err)
		}
	}
}

// The ring against a slice, with indices that wrap.
func TestSQModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := NewSQ(rapid.IntRange(1, 40).Draw(t, "depth"), 3, 16)
		start := rapid.SampledFrom([]uint32{0, math.MaxUint32 - 5, 1 << 31}).Draw(t, "start")
		q.head, q.tail = start, start
		type entry struct {
			id   uint64
			data string
			sgl  []driver.SGE
		}
		var model []entry
		next := uint64(0)
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				next++
				e := entry{id: next}
				for range rapid.IntRange(0, 3).Draw(t, "elements") {
					e.sgl = append(e.sgl, driver.SGE{Addr: rapid.Uint64().Draw(t, "addr"), Length: 5, LKey: 7})
				}
				w := q.Push(&driver.SendWR{WRID: next, SGList: e.sgl})
				if (w != nil) != (len(model) < q.Cap()) {
					t.Fatal("full or not")
				}
				if w != nil {
					model = append(model, e)
				}
			},
			"inline": func(t *rapid.T) {
				next++
				e := entry{id: next, data: rapid.StringN(0, 3, 16).Draw(t, "data")}
				w, err := q.PushInline(&driver.SendWR{WRID: next, InlineData: []byte(e.data), Flags: ib.SendInline}, nil)
				if (err == nil) != (len(model) < q.Cap()) || (w == nil) != (err != nil) {
					t.Fatal(err)
				}
				if err == nil {
					model = append(model, e)
				}
			},
			"pop": func(t *rapid.T) {
				if len(model) == 0 {
					t.Skip()
				}
				q.Pop()
				model = model[1:]
			},
			"": func(t *rapid.T) {
				if q.Len() != len(model) || q.Tail()-q.Head() != uint32(len(model)) {
					t.Fatalf("%d requests, want %d", q.Len(), len(model))
				}
				for i, e := range model {
					w := q.At(q.Head() + uint32(i))
					if w.WRID != e.id || string(w.Inline) != e.data || !slices.Equal(w.SGL, e.sgl) || w.Length != uint64(5*len(e.sgl)+len(e.data)) {
						t.Fatalf("request %d: %+v, want %+v", i, w, e)
					}
				}
			},
		})
	})
}

func sizeOf[T any]() int { return int(reflect.TypeFor[T]().Size()) }

// An idle queue pair's queues, before their first use and after.
func TestIdleMemory(t *testing.T) {
	const depth, sges = 16, 4
	sq, rq := NewSQ(depth, sges, 220), NewRQ(depth, sges)
	size := func() int {
		n := sizeOf[SQ]() + sizeOf[RQ]() + len(sq.wqes)*sizeOf[WQE]() + len(rq.ring)*sizeOf[recvSlot]()
		for _, s := range []*store[driver.SGE]{&sq.sgl, &rq.sgl} {
			n += 24 * len(s.chunks)
			for _, c := range s.chunks {
				n += cap(c) * sizeOf[driver.SGE]()
			}
		}
		return n
	}
	if n := size(); n > 3<<10 {
		t.Errorf("%d bytes unused", n)
	}
	sq.Push(&driver.SendWR{SGList: make([]driver.SGE, sges)})
	_, _ = rq.Post(make([]driver.RecvWR, depth))
	if n := size(); n > 5<<10 {
		t.Errorf("%d bytes in use", n)
	}
	if n := sizeOf[WQE](); n > 152 {
		t.Errorf("a send request has %d bytes", n)
	}
}
