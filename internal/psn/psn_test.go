package psn

import (
	"testing"

	"pgregory.net/rapid"
)

func TestAddWraps(t *testing.T) {
	for _, c := range []struct {
		p    PSN
		n    int
		want PSN
	}{
		{0, 0, 0},
		{0, 1, 1},
		{Mask, 1, 0},
		{Mask - 1, 3, 1},
		{0, -1, Mask},
		{5, -6, Mask},
		{7, 1 << 24, 7},
		{7, -(1 << 24), 7},
		{1, 1<<23 - 1, 1 << 23},
	} {
		if got := c.p.Add(c.n); got != c.want {
			t.Errorf("PSN(%#x).Add(%d) = %#x, want %#x", c.p, c.n, got, c.want)
		}
	}
	if got := PSN(Mask).Next(); got != 0 {
		t.Errorf("PSN(%#x).Next() = %#x, want 0", Mask, got)
	}
	if got := PSN(41).Next(); got != 42 {
		t.Errorf("PSN(41).Next() = %d, want 42", got)
	}
}

func TestOrder(t *testing.T) {
	for _, c := range []struct {
		a, b PSN
		diff int
	}{
		{0, 0, 0},
		{1, 0, 1},
		{0, 1, -1},
		{0, Mask, 1},
		{Mask, 0, -1},
		{1<<23 - 1, 0, 1<<23 - 1},
		{1 << 23, 0, -(1 << 23)},
		{0x800010, 0x800020, -16},
		{0x10, 0xFFFFF0, 32},
	} {
		if got := Diff(c.a, c.b); got != c.diff {
			t.Errorf("Diff(%#x, %#x) = %d, want %d", c.a, c.b, got, c.diff)
		}
		if got := c.a.Before(c.b); got != (c.diff < 0) {
			t.Errorf("%#x.Before(%#x) = %v with distance %d", c.a, c.b, got, c.diff)
		}
		if got := c.a.After(c.b); got != (c.diff > 0) {
			t.Errorf("%#x.After(%#x) = %v with distance %d", c.a, c.b, got, c.diff)
		}
	}
}

func TestInRange(t *testing.T) {
	for _, c := range []struct {
		p, first, last PSN
		want           bool
	}{
		{5, 5, 5, true},
		{4, 5, 5, false},
		{6, 5, 5, false},
		{0, 0xFFFFFE, 1, true},
		{0xFFFFFE, 0xFFFFFE, 1, true},
		{1, 0xFFFFFE, 1, true},
		{2, 0xFFFFFE, 1, false},
		{0xFFFFFD, 0xFFFFFE, 1, false},
		{0x900000, 0, 0xFFFFFF, true},
	} {
		if got := c.p.InRange(c.first, c.last); got != c.want {
			t.Errorf("%#x.InRange(%#x, %#x) = %v, want %v", c.p, c.first, c.last, got, c.want)
		}
	}
}

func TestArithmeticIsConsistent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := PSN(rapid.Uint32Range(0, Mask).Draw(t, "p"))
		n := rapid.IntRange(-(1<<23), 1<<23-1).Draw(t, "n")
		q := p.Add(n)
		if q > Mask {
			t.Fatalf("%#x.Add(%d) = %#x has more than 24 bits", p, n, q)
		}
		if got := Diff(q, p); got != n {
			t.Fatalf("Diff(%#x, %#x) = %d, want %d", q, p, got, n)
		}
		if q.Before(p) != (n < 0) || q.After(p) != (n > 0) {
			t.Fatalf("order of %#x and %#x does not match distance %d", q, p, n)
		}
		if back := q.Add(-n); back != p {
			t.Fatalf("adding %d and taking it away gives %#x, want %#x", n, back, p)
		}
		if n >= 0 && (!p.InRange(p, q) || !q.InRange(p, q) || q.Next().InRange(p, q)) {
			t.Fatalf("the ends of [%#x, %#x] are wrong", p, q)
		}
	})
}
