package main

import "hash"

// inOrder hashes what is written to it at any offsets, each byte once.
type inOrder struct {
	h    hash.Hash
	at   int64
	wait map[int64][]byte // what comes later
}

func (o *inOrder) WriteAt(b []byte, at int64) (int, error) {
	if at != o.at {
		o.wait[at] = append([]byte(nil), b...)
		return len(b), nil
	}
	o.h.Write(b)
	o.at += int64(len(b))
	for next, ok := o.wait[o.at]; ok; next, ok = o.wait[o.at] {
		delete(o.wait, o.at)
		o.h.Write(next)
		o.at += int64(len(next))
	}
	return len(b), nil
}
