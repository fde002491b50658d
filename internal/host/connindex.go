package host

import (
	"encoding/binary"
	"net/netip"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// The index finds the member that has a connection by what its peer calls it: messages
// that the peer repeats do not always have our ID. It is a help, nothing rests on it: where its
// window is full a connection is not in it.
//
//	word  generation:24 | hash:32 | slot:8, 0: none
const indexWindow = 32

func indexHash(remote netip.Addr, id uint32) uint32 {
	b := remote.Unmap().As16()
	h := binary.BigEndian.Uint64(b[:8])*0x9E3779B97F4A7C15 ^ binary.BigEndian.Uint64(b[8:])
	h = (h ^ h>>29 ^ uint64(id)) * 0xBF58476D1CE4E5B9
	h = (h ^ h>>32) * 0x94D049BB133111EB
	return uint32(h >> 32)
}

func indexWord(slot int, gen, hash uint32) uint64 {
	return uint64(gen)<<40 | uint64(hash)<<8 | uint64(slot)
}

// indexed reports whether a word was written by a living member.
func (d dir) indexed(w uint64) bool {
	gen, ok := d.live(int(w & 0xFF))
	return ok && w>>40 == uint64(gen)&(1<<24-1)
}

func (d dir) index(slot int, gen uint32, r *driver.ConnRecord) {
	hash := indexHash(r.Remote, r.RemoteID)
	w := indexWord(slot, gen, hash)
	for n := range uint32(indexWindow) {
		i := indexAt + int((hash+n)%indexLen)
		old := d.load(i)
		if old == w || !d.indexed(old) && d.cas(i, old, w) {
			return
		}
	}
}

func (d dir) unindex(slot int, gen uint32, r *driver.ConnRecord) {
	hash := indexHash(r.Remote, r.RemoteID)
	w := indexWord(slot, gen, hash)
	for n := range uint32(indexWindow) {
		if d.cas(indexAt+int((hash+n)%indexLen), w, 0) {
			return
		}
	}
}

// lookup finds who has a connection that its peer at remote knows by an ID.
func (d dir) lookup(remote netip.Addr, id uint32) (int, bool) {
	hash := indexHash(remote, id)
	for n := range uint32(indexWindow) {
		w := d.load(indexAt + int((hash+n)%indexLen))
		if uint32(w>>8) == hash && d.indexed(w) {
			return int(w & 0xFF), true
		}
	}
	return 0, false
}
