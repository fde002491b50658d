package verbs_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/verbs"
)

// The life of kernel storage clients on a network that loses packets: a list of
// [LOCAL_INV] REG_MR SEND carries the key of scattered memory to the peer, who
// reads and writes it and takes the key back, or leaves that to the client.
func TestFastRegistrationUnderLoss(t *testing.T) {
	for seed := range uint64(6) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		r := newRig(t, 9000)
		r.net.SetDefault(simnet.Link{Loss: 0.02})
		client, server := r.pair(ib.RC)
		pool, m := r.a.buffer(64*page, ib.AccessLocalWrite), r.a.fastMR(16)
		req, into, staging := r.a.mem(8), r.b.mem(8), r.b.mem(16*page)
		owed := false // the key is still valid
		for i := range 40 {
			var list [][]byte
			total := 0
			first := rnd.IntN(page)
			for k := range rnd.IntN(7) + 1 {
				from := rnd.IntN(31) * 2 * page
				b := pool.Bytes()[from : from+page*(1+rnd.IntN(2))]
				if k == 0 {
					b = b[first:]
				}
				list = append(list, b)
				total += len(b)
			}
			last := &list[len(list)-1]
			cut := rnd.IntN(len(*last))
			*last, total = (*last)[:len(*last)-cut], total-cut
			for k := range list { // pieces may overlap
				for j := range list[k] {
					list[k][j] = byte(rnd.Uint32())
				}
			}
			if n, rest, err := m.MapSG(list, 0, page); n != len(list) || rest != 0 || err != nil || m.Length() != uint64(total) {
				t.Fatal(n, rest, err)
			}
			key := ib.TagRKey(m.RKey(), uint8(rnd.Uint32()))
			var wrs []verbs.SendWR
			if owed {
				wrs = append(wrs, verbs.SendWR{Opcode: ib.WRLocalInv, InvalidateRKey: m.RKey()})
			}
			wrs = append(wrs, *regMR(m, key, ib.AccessLocalWrite|ib.AccessRemoteWrite|ib.AccessRemoteRead),
				verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{req.SGE(0, 8)}})
			wrs[len(wrs)-2].Flags = 0
			if err := server.PostRecvOne(&verbs.RecvWR{SGList: []verbs.SGE{into.SGE(0, 8)}}); err != nil {
				t.Fatal(err)
			}
			if err := client.PostSend(wrs); err != nil {
				t.Fatal(err)
			}
			for _, wc := range append(r.wcs(r.a.cq, 1), r.wcs(r.b.cq, 1)...) {
				if wc.Err() != nil {
					t.Fatalf("seed %d, %d: %v", seed, i, wc.Err())
				}
			}
			// The server.
			op := ib.WRRDMARead
			if i%2 == 0 {
				op = ib.WRRDMAWrite
				for j := range staging.Bytes()[:total] {
					staging.Bytes()[j] = byte(rnd.Uint32())
				}
			}
			if st := r.do(r.b, server, &verbs.SendWR{
				Opcode: op, Flags: ib.SendSignaled, SGList: []verbs.SGE{staging.SGE(0, total)}, RemoteAddr: m.Addr(), RKey: key,
			}); st != ib.WCSuccess {
				t.Fatalf("seed %d, %d: %v %v", seed, i, op, st)
			}
			want := staging.Bytes()[:total]
			if op == ib.WRRDMARead {
				if !bytes.Equal(want, bytes.Join(list, nil)) {
					t.Fatalf("seed %d, %d: read other bytes", seed, i)
				}
			} else {
				// In order, so that overlapping pieces hold what was written last.
				shadow := make(map[*byte]byte, total)
				at := 0
				for _, p := range list {
					for j := range p {
						shadow[&p[j]] = want[at]
						at++
					}
				}
				for p, b := range shadow {
					if *p != b {
						t.Fatalf("seed %d, %d: written elsewhere", seed, i)
					}
				}
			}
			if owed = rnd.IntN(2) == 0; owed {
				continue
			}
			if err := client.PostRecvOne(&verbs.RecvWR{}); err != nil {
				t.Fatal(err)
			}
			if st := r.do(r.b, server, &verbs.SendWR{Opcode: ib.WRSendWithInv, Flags: ib.SendSignaled, InvalidateRKey: key}); st != ib.WCSuccess {
				t.Fatalf("seed %d, %d: SEND with invalidate %v", seed, i, st)
			}
			if wc := r.wcs(r.a.cq, 1)[0]; wc.Err() != nil || wc.InvalidatedRKey != key {
				t.Fatalf("seed %d, %d: %+v", seed, i, wc)
			}
		}
	}
}
