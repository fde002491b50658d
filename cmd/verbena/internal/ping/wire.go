package ping

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/verbena-rdma/verbena/ib"
)

// infoLen is the length of every message.
const infoLen = 16

// info is what a message tells: a buffer of the client's. The server's messages, the
// go-aheads, have the same length, and nobody looks at what is in them.
type info struct {
	Addr uint64
	RKey ib.RKey
	Size uint32
}

// put writes the message, big-endian: address, key, length.
func (i info) put(b []byte) {
	binary.BigEndian.PutUint64(b[0:], i.Addr)
	binary.BigEndian.PutUint32(b[8:], uint32(i.RKey))
	binary.BigEndian.PutUint32(b[12:], i.Size)
}

// parse reads what put has written; it refuses other lengths.
func parse(b []byte) (info, error) {
	if len(b) != infoLen {
		return info{}, fmt.Errorf("received bogus data, size %d: want %d", len(b), infoLen)
	}
	return info{
		Addr: binary.BigEndian.Uint64(b[0:]),
		RKey: ib.RKey(binary.BigEndian.Uint32(b[8:])),
		Size: binary.BigEndian.Uint32(b[12:]),
	}, nil
}

// The letters of the ping data.
const (
	firstLetter = 'A'
	lastLetter  = 'z'
)

// fill writes the data of ping n: its number, then letters in a row that starts one
// further with each ping, and a 0 at the end.
func fill(b []byte, n int) {
	head := append(strconv.AppendInt([]byte("rdma-ping-"), int64(n), 10), ": "...)
	k := copy(b, head)
	const letters = lastLetter - firstLetter + 1
	for i := range b[k:] {
		b[k+i] = firstLetter + byte((n+i)%letters)
	}
	b[len(b)-1] = 0
}

// text is the data up to the first 0.
func text(b []byte) []byte {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return b[:i]
	}
	return b
}
