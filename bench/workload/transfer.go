package workload

import (
	"encoding/json"
	"runtime"
	"time"

	"github.com/verbena-rdma/verbena/bench"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

func snapshot() usage {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return usage{at: time.Now(), cpu: cpuTime(), allocs: m.Mallocs}
}

// client is the asking side.
func client(args json.RawMessage, in *json.Decoder, out *json.Encoder) error {
	s, err := newSide(args, in, out, depth)
	if err != nil {
		return err
	}
	defer s.dev.Close()
	if s.Kind == "lat" {
		if err := s.postRecvs(s.qps[0], depth); err != nil {
			return err
		}
	}
	if err := s.start(in); err != nil {
		return err
	}
	var r result
	switch s.Kind {
	case "bw":
		if _, err = s.stream(s.Duration / 10); err == nil {
			r, err = s.stream(s.Duration)
		}
	case "post":
		if _, err = s.post(s.Duration / 10); err == nil {
			r, err = s.post(s.Duration)
		}
	default:
		r, err = s.ping()
	}
	if err != nil {
		return err
	}
	return out.Encode(r)
}

// server is the other side.
func server(args json.RawMessage, in *json.Decoder, out *json.Encoder) error {
	s, err := newSide(args, in, out, 2*depth)
	if err != nil {
		return err
	}
	defer s.dev.Close()
	if s.Op != ib.WRRDMAWrite && s.Op != ib.WRRDMARead {
		for _, qp := range s.qps {
			if err := s.postRecvs(qp, 2*depth); err != nil {
				return err
			}
		}
	}
	if err := s.start(in); err != nil {
		return err
	}
	stop := s.stopped(in)
	u := snapshot()
	if s.Kind == "lat" {
		err = s.pong(stop)
	} else {
		err = s.serve(stop)
	}
	if err != nil {
		return err
	}
	return out.Encode(since(u, 1))
}

// recvWR is a receive for one message.
func (s *side) recvWR() verbs.RecvWR {
	return verbs.RecvWR{SGList: []verbs.SGE{s.mr.SGE(s.slot(), s.Size)}}
}

func (s *side) postRecvs(qp *verbs.QP, n int) error {
	wrs := make([]verbs.RecvWR, n)
	for i := range wrs {
		wrs[i] = s.recvWR()
	}
	return qp.PostRecv(wrs)
}

// sendWR is the work request of the job.
func (s *side) sendWR() verbs.SendWR {
	w := verbs.SendWR{Opcode: s.Op, SGList: []verbs.SGE{s.mr.SGE(0, s.Size)}, RemoteAddr: s.peer.Addr, RKey: ib.RKey(s.peer.RKey)}
	if s.Size <= 64 && s.Op != ib.WRRDMARead {
		w.Flags = ib.SendInline
	}
	return w
}

// stream keeps the queue pairs busy.
func (s *side) stream(d time.Duration) (result, error) {
	wrs := make([]verbs.SendWR, s.Batch)
	for i := range wrs {
		wrs[i] = s.sendWR()
	}
	last := &wrs[s.Batch-1]
	last.Flags |= ib.SendSignaled
	wcs := make([]verbs.WC, 64)
	under := make([]int, len(s.qps)) // signaled posts under way, by queue pair
	most := depth / s.Batch
	if len(s.qps) == 1 && s.Size*depth > 4<<20 {
		most = max(4<<20/s.Size, 4)
	}
	if len(s.qps) > 1 {
		most = 1
	}
	u := snapshot()
	end := u.at.Add(d)
	var messages uint64
	open := 0
	for turn := 0; ; turn++ {
		running := turn%64 != 0 || time.Now().Before(end)
		if turn%64 == 0 && !running && open == 0 {
			break
		}
		if running {
			for i, qp := range s.qps {
				for under[i] < most && time.Now().Before(end) {
					last.WRID = uint64(i)
					if err := qp.PostSend(wrs); err != nil {
						return result{}, err
					}
					under[i]++
					open++
				}
			}
		}
		if open == 0 {
			continue // there is nothing to wait for
		}
		n, err := s.take(s.scq, wcs)
		if err != nil {
			return result{}, err
		}
		for _, wc := range wcs[:n] {
			under[wc.WRID]--
			open--
			messages += uint64(s.Batch)
		}
	}
	return since(u, messages), nil
}

// serve makes progress for the client's transfers, and takes messages.
func (s *side) serve(stop interface{ Load() bool }) error {
	wcs := make([]verbs.WC, 64)
	again := make([]verbs.RecvWR, 0, 64)
	byNum := make(map[ib.QPN]*verbs.QP, len(s.qps))
	for _, qp := range s.qps {
		byNum[qp.Num()] = qp
	}
	for !stop.Load() {
		n, err := s.take(s.rcq, wcs)
		if err != nil {
			return err
		}
		again = again[:0]
		for _, wc := range wcs[:n] {
			if len(s.qps) > 1 {
				one := s.recvWR()
				if err := byNum[wc.QPNum].PostRecvOne(&one); err != nil {
					return err
				}
				continue
			}
			again = append(again, s.recvWR())
		}
		if len(again) > 0 {
			if err := s.qps[0].PostRecv(again); err != nil {
				return err
			}
		}
	}
	return nil
}

// post times single operations from post to completion.
func (s *side) post(d time.Duration) (result, error) {
	w := s.sendWR()
	w.Flags |= ib.SendSignaled
	wcs := make([]verbs.WC, 1)
	samples := make([]int64, 0, 1<<20)
	u := snapshot()
	end := u.at.Add(d)
	for now := u.at; now.Before(end) && len(samples) < cap(samples); {
		if err := s.qps[0].PostSendOne(&w); err != nil {
			return result{}, err
		}
		for {
			n, err := s.take(s.scq, wcs)
			if err != nil {
				return result{}, err
			}
			if n > 0 {
				break
			}
		}
		then := time.Now()
		samples = append(samples, int64(then.Sub(now)))
		now = then
	}
	r := since(u, uint64(len(samples)))
	r.Median, r.P99 = bench.Percentile(samples, 50), bench.Percentile(samples, 99)
	return r, nil
}
