package ib

import "testing"

// ibv_inc_rkey(3): the 8 low bits count, the index stays.
func TestRKeyTags(t *testing.T) {
	for _, c := range [][2]RKey{{0x12345600, 0x12345601}, {0x123456FF, 0x12345600}, {0xFFFFFFFF, 0xFFFFFF00}, {0, 1}} {
		if got := IncRKey(c[0]); got != c[1] {
			t.Errorf("%#x: %#x, want %#x", c[0], got, c[1])
		}
	}
	if got := TagRKey(0x123456FF, 0x7F); got != 0x1234567F {
		t.Errorf("%#x", got)
	}
}

// The numbers of enum ibv_rereg_mr_flags and ibv_device_cap_flags of verbs.h.
func TestMemoryNumbers(t *testing.T) {
	if ReregTranslation != 1 || ReregPD != 2 || ReregAccess != 4 {
		t.Error("rereg flags")
	}
	if DeviceCapMemWindow != 0x20000 || DeviceCapMemMgtExtensions != 0x200000 || DeviceCapMemWindowType2A != 0x800000 ||
		DeviceCapMemWindowType2B != 0x1000000 || DeviceCapLocalDMALKey != 0x8000 {
		t.Error("capability flags")
	}
	if AdvisePrefetch != 0 || AdvisePrefetchWrite != 1 || AdvisePrefetchNoFault != 2 {
		t.Error("advices")
	}
	if s := (ReregPD | ReregAccess | 8).String(); s != "CHANGE_PD|CHANGE_ACCESS|0x8" {
		t.Error(s)
	}
}
