package demo

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// transfer sends the file by RDMA WRITE and gets it back by READ, in rounds of a
// window.
func (r *run) transfer(ctx context.Context) error {
	r.bar.begin(r.Bar, 2*r.file.size)
	defer r.bar.end()
	window := len(r.window.Bytes()) / 2
	sent, back := sha256.New(), sha256.New()
	var peerSum string
	for left, first := r.file.size, true; left > 0 || first; first = false {
		n := int(min(left, int64(window)))
		left -= int64(n)
		b := r.window.Bytes()
		if err := r.file.read(b[:n]); err != nil {
			return err
		}
		sent.Write(b[:n])
		clear(b[window:]) // what it held must not pass for what came back
		if err := r.move(ctx, ib.WRRDMAWrite, 0, n, &r.res.Write); err != nil {
			return err
		}
		a, err := r.child.ask(ctx, &request{Op: opHash, Len: n, Last: left == 0})
		if err != nil {
			return err
		}
		peerSum = a.Sum
		if err := r.move(ctx, ib.WRRDMARead, window, n, &r.res.Read); err != nil {
			return err
		}
		back.Write(b[window : window+n])
	}
	sum := hex.EncodeToString(sent.Sum(nil))
	r.res.SHA256 = sum
	r.res.check("WRITE", sum, peerSum)
	r.res.check("READ", sum, hex.EncodeToString(back.Sum(nil)))
	return nil
}

// move moves n bytes between our window, from offset at on, and the start of the
// peer's, with several work requests under way.
func (r *run) move(ctx context.Context, op ib.WROpcode, at, n int, rate *Rate) error {
	name := "WRITE"
	if op == ib.WRRDMARead {
		name = "READ"
	}
	r.rec.enter(name)
	r.bar.step(name)
	start := time.Now()
	posted, done := 0, 0
	for first := true; done < n || first; {
		for first || posted < n && posted-done < flight*chunk {
			first = false
			k := min(chunk, n-posted)
			wr := verbs.SendWR{
				WRID: uint64(k), Opcode: op, Flags: ib.SendSignaled,
				RemoteAddr: r.remote.WindowAddr + uint64(posted), RKey: r.remote.WindowKey,
			}
			if k > 0 {
				wr.SGList = []verbs.SGE{r.window.SGE(at+posted, k)}
			}
			if err := r.rc.PostSendOne(&wr); err != nil {
				return err
			}
			posted += k
		}
		wcs, err := r.wait(ctx)
		if err != nil {
			return fmt.Errorf("%s after %d of %d bytes: %w", name, rate.Bytes+int64(done), r.file.size, err)
		}
		for i := range wcs {
			done += int(wcs[i].WRID)
			r.bar.add(int(wcs[i].WRID))
		}
	}
	rate.Bytes += int64(n)
	rate.Seconds += time.Since(start).Seconds()
	return nil
}

// message tells the peer by SEND what it got.
func (r *run) message(ctx context.Context) error {
	name := filepath.Base(r.file.name)
	text, err := json.Marshal(map[string]any{"file": name[:min(len(name), 255)], "bytes": r.file.size, "sha256": r.res.SHA256})
	if err != nil {
		return err
	}
	n := copy(r.bytes(messageAt, messageMax), text)
	r.rec.enter("SEND")
	wr := verbs.SendWR{Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{r.small.SGE(messageAt, n)}}
	if err := r.rc.PostSendOne(&wr); err != nil {
		return err
	}
	if _, err := r.one(ctx); err != nil {
		return fmt.Errorf("SEND: %w", err)
	}
	a, err := r.child.ask(ctx, &request{Op: opRecv})
	if err != nil {
		return err
	}
	r.res.Message = n
	r.res.check("SEND", sumOf(text[:n]), a.Sum)
	return nil
}

// atomics adds to the peer's word and swaps it.
func (r *run) atomics(ctx context.Context) error {
	swap := uint64(1000 + rand.IntN(9000))
	add := verbs.SendWR{Opcode: ib.WRAtomicFetchAndAdd, CompareAdd: 1}
	cas := verbs.SendWR{Opcode: ib.WRAtomicCmpAndSwp, CompareAdd: firstWord + 1, Swap: swap}
	for _, op := range []struct {
		name string
		wr   *verbs.SendWR
		want uint64
	}{{"FETCH_ADD", &add, firstWord}, {"CMP_SWAP", &cas, firstWord + 1}} {
		r.rec.enter(op.name)
		op.wr.Flags, op.wr.SGList = ib.SendSignaled, []verbs.SGE{r.small.SGE(resultAt, 8)}
		op.wr.RemoteAddr, op.wr.RKey = r.remote.SmallAddr+wordAt, r.remote.SmallKey
		if err := r.rc.PostSendOne(op.wr); err != nil {
			return err
		}
		if _, err := r.one(ctx); err != nil {
			return fmt.Errorf("%s: %w", op.name, err)
		}
		r.res.check(op.name, fmt.Sprint(op.want), fmt.Sprint(binary.NativeEndian.Uint64(r.bytes(resultAt, 8))))
	}
	a, err := r.child.ask(ctx, &request{Op: opAtomic})
	if err != nil {
		return err
	}
	r.res.check("ATOMIC RESULT", fmt.Sprint(swap), fmt.Sprint(a.Value))
	return nil
}

// datagram sends one datagram. Nobody repeats it when it is lost.
func (r *run) datagram(ctx context.Context) error {
	ah, err := r.pd.CreateAH(&ib.AHAttr{IsGlobal: true, DGID: ib.GIDFromAddr(r.PeerAddr), HopLimit: 64, PortNum: 1})
	if err != nil {
		return err
	}
	defer ah.Destroy()
	b := r.bytes(datagramAt+grhLen, datagramLen)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	r.rec.enter("DATAGRAM")
	wr := verbs.SendWR{
		Opcode: ib.WRSend, Flags: ib.SendSignaled, SGList: []verbs.SGE{r.small.SGE(datagramAt+grhLen, datagramLen)},
		AH: ah, RemoteQPN: r.remote.UD, RemoteQKey: qkey,
	}
	if err := r.ud.PostSendOne(&wr); err != nil {
		return err
	}
	if _, err := r.one(ctx); err != nil {
		return fmt.Errorf("DATAGRAM: %w", err)
	}
	a, err := r.child.ask(ctx, &request{Op: opDatagram})
	if err != nil {
		return err
	}
	r.res.Datagram = datagramLen
	r.res.check("DATAGRAM", sumOf(b), a.Sum)
	from := fmt.Sprintf("QP 0x%06x of %s", uint32(r.me.UD), ib.GIDFromAddr(r.Addr).Addr())
	if a.GID == nil {
		return fmt.Errorf("the second process told no sender of the datagram")
	}
	r.res.check("DATAGRAM SENDER", from, fmt.Sprintf("QP 0x%06x of %s", uint32(a.SrcQP), a.GID.Addr()))
	return nil
}

// latency measures round trips of small writes.
func (r *run) latency(ctx context.Context) error {
	if r.Pings == 0 {
		return nil
	}
	if err := r.postPings(pings); err != nil {
		return err
	}
	if _, err := r.child.ask(ctx, &request{Op: opPong, Count: r.Pings}); err != nil {
		return err
	}
	r.rec.enter("PINGPONG")
	h := hdrhistogram.New(1, int64(time.Minute), 3)
	var lost error
	if err := r.rally(ctx, r.Pings, &r.remote, func(d time.Duration) {
		if err := h.RecordValue(max(d.Nanoseconds(), 1)); err != nil {
			lost = err
		}
	}); err != nil {
		return fmt.Errorf("PINGPONG: %w", err)
	}
	half := func(ns int64) float64 { return float64(ns) / 2e3 }
	r.res.Latency = &Latency{
		Count: r.Pings, P50: half(h.ValueAtQuantile(50)), P99: half(h.ValueAtQuantile(99)), Min: half(h.Min()), Max: half(h.Max()),
	}
	return lost
}
