package mem

import "sort"

// Reaches reports whether all of b is in one buffer of the domain, and the domain's
// local DMA key names it.
func (pd *PD) Reaches(b []byte) bool {
	if len(b) == 0 {
		return false
	}
	list, at := pd.buffers(), uint64(address(b))
	i := sort.Search(len(list), func(i int) bool { return uint64(address(list[i])) > at }) - 1
	return i >= 0 && at+uint64(len(b)) <= uint64(address(list[i]))+uint64(len(list[i]))
}
