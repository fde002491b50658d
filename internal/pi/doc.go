// Package pi is T10 protection information: the guards of blocks, at the speed of
// the machine's carry-less multiplication, the tuple behind each block, and what
// domains want of tuples. It knows nothing of where data lies.
package pi
