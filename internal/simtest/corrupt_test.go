package simtest

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/port/simnet"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// TestMillionCorruptions damages a million datagrams and counts what passes.
// With the identification known the ICRC has 32 bits to say no: nothing may
// pass. Without it the check alone lets one in 65,536 pass; the judgement of
// the solved identification takes most of those out.
func TestMillionCorruptions(t *testing.T) {
	corruptions := 1_000_000
	if testing.Short() || raceEnabled {
		corruptions = 50_000
	}
	for _, c := range []struct {
		name string
		hide bool
		most float64 // damaged packets that may pass
	}{
		{"identification known", false, 0},
		// The mean without judgement is one in 65,536; three times that and a few
		// more are never seen by chance.
		{"identification solved", true, 3*float64(corruptions)/65536 + 6},
	} {
		t.Run(c.name, func(t *testing.T) { corrupt(t, corruptions, c.hide, c.most) })
	}
}

func corrupt(t *testing.T, corruptions int, hide bool, most float64) {
	const size, batch = 64, 32
	r := newRig(t, 4791, 2, simnet.Config{HideID: hide})
	a, b := r.at[0], r.at[1]
	qa, qb := a.qp(ib.UD), b.qp(ib.UD)
	for _, q := range []driver.QP{qa, qb} {
		r.must(q.Modify(&ib.QPAttr{QPState: ib.QPStateInit, PortNum: 1, QKey: 7}, ib.QPAttrState|ib.QPAttrPKeyIndex|ib.QPAttrPort|ib.QPAttrQKey))
		r.must(q.Modify(&ib.QPAttr{QPState: ib.QPStateRTR}, ib.QPAttrState))
		r.must(q.Modify(&ib.QPAttr{QPState: ib.QPStateRTS}, ib.QPAttrState|ib.QPAttrSQPSN))
	}
	ah, err := a.dev.CreateAH(a.pd, &ib.AHAttr{DGID: ib.GIDFromAddr(b.addr), HopLimit: 64, IsGlobal: true, PortNum: 1})
	r.must(err)
	// Every other datagram is damaged: any number of its bits, anywhere. What is
	// outside the ICRC by design (FECN, BECN) does not count.
	rng := rand.New(rand.NewPCG(1, 1))
	damaged := 0
	r.net.Filter(func(e *simnet.Event) simnet.Verdict {
		if e.Count%2 == 0 {
			return simnet.Pass
		}
		damaged++
		var flips [8]int
		bits := 1 + rng.IntN(len(flips))
		for n := 0; n < bits; {
			i := rng.IntN(len(e.B) * 8)
			if i/8 == 4 || slices.Contains(flips[:n], i) {
				continue // outside, or it would undo a flip
			}
			e.B[i/8] ^= 1 << (i % 8)
			flips[n] = i
			n++
		}
		return simnet.Pass
	})
	wrs := make([]driver.SendWR, batch)
	rcv := make([]driver.RecvWR, batch)
	for i := range wrs {
		wrs[i] = driver.SendWR{
			WRID: uint64(i), Opcode: ib.WRSendWithImm, SGList: a.sge(i*size, size), AH: ah, RemoteQPN: qb.Num(), RemoteQKey: 7,
		}
		rcv[i] = driver.RecvWR{WRID: uint64(i), SGList: b.sge(i*256, 40+size)}
	}
	b.recv(qb, rcv...)
	good, bad, serial := 0, 0, uint32(0)
	var wcs [2 * batch]driver.WC
	for damaged < corruptions {
		for i := range wrs {
			serial++
			wrs[i].ImmData = serial
			for j := 0; j < size; j += 8 {
				binary.LittleEndian.PutUint64(a.mem[i*size+j:], uint64(serial)*0x9E3779B97F4A7C15+uint64(j))
			}
		}
		a.send(qa, wrs...)
		r.net.RunFor(20 * micro)
		if _, err := a.cq.Poll(wcs[:]); err != nil {
			t.Fatal(err)
		}
		n, err := b.cq.Poll(wcs[:])
		r.must(err)
		for _, wc := range wcs[:n] {
			d := b.mem[wc.WRID*256+40:][:size]
			ok := wc.Status == ib.WCSuccess && wc.ByteLen == 40+size && wc.SrcQP == qa.Num() && wc.Flags == ib.WCGRH|ib.WCWithImm
			for j := 0; j < size; j += 8 {
				ok = ok && binary.LittleEndian.Uint64(d[j:]) == uint64(wc.ImmData)*0x9E3779B97F4A7C15+uint64(j)
			}
			if ok {
				good++
			} else {
				bad++
			}
			b.recv(qb, rcv[wc.WRID])
		}
	}
	st := b.dev.Stats()
	passed := damaged - int(st.DropICRC+st.DropID+st.DropShort+st.DropVersion+st.DropOpcode+st.DropPad+st.DropNoQP+st.DropTransport+st.DropGSI+st.DropMulticast)
	t.Logf("%d damaged: %d passed the check and reached a queue pair, %d completed wrong; %d by solved identification; %d good",
		damaged, passed, bad, st.DropID, good)
	if float64(bad) > most {
		t.Errorf("%d damaged messages were received, at most %v may be", bad, most)
	}
	if want := int(serial) - damaged; good != want {
		t.Errorf("%d good messages were received of %d", good, want)
	}
}
