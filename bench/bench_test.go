package bench

import "testing"

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0},
		{[]float64{3}, 3},
		{[]float64{9, 1, 5}, 5},
		{[]float64{4, 1, 2, 100}, 3},
	} {
		if got := Median(c.values); got != c.want {
			t.Errorf("Median(%v) = %v, want %v", c.values, got, c.want)
		}
	}
}

func TestPercentile(t *testing.T) {
	hundred := make([]int64, 100)
	for i := range hundred {
		hundred[i] = int64(100 - i)
	}
	for p, want := range map[float64]int64{0: 1, 1: 1, 50: 50, 99: 99, 99.5: 100, 100: 100} {
		if got := Percentile(hundred, p); got != want {
			t.Errorf("Percentile(1..100, %v) = %d, want %d", p, got, want)
		}
	}
	if got := Percentile(nil, 50); got != 0 {
		t.Errorf("Percentile of nothing = %d, want 0", got)
	}
}

func TestCoresAreUsable(t *testing.T) {
	for _, c := range Cores() {
		if c < 0 {
			t.Errorf("core %d", c)
		}
	}
}
