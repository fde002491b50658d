package workload

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/verbena-rdma/verbena/bench"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// warmUp is how many round trips are not counted.
const warmUp = 1000

// stopMark in a message ends the pong.
const stopMark = ^uint32(0)

// player is one side of a ping-pong.
type player struct {
	*side
	send verbs.SendWR
	recv verbs.RecvWR
	wcs  []verbs.WC
	mark []byte  // of the message that is sent: its last 4 bytes
	seen *uint32 // of the one that arrives
	live int     // sends not completed
	used bool    // a receive is to be posted again
}

func (s *side) player() *player {
	p := &player{side: s, send: s.sendWR(), recv: s.recvWR(), wcs: make([]verbs.WC, 16)}
	p.send.Flags |= ib.SendSignaled
	b := s.mr.Bytes()
	p.mark = b[s.Size-4 : s.Size]
	p.seen = word(b[s.slot()+s.Size-4:])
	return p
}

// hit sends message n.
func (p *player) hit(n uint32) error {
	binary.NativeEndian.PutUint32(p.mark, n)
	for p.live >= depth/2 {
		if err := p.reap(); err != nil {
			return err
		}
	}
	p.live++
	if err := p.qps[0].PostSendOne(&p.send); err != nil || !p.used {
		return err
	}
	p.used = false // the answer does not wait for this
	return p.qps[0].PostRecvOne(&p.recv)
}

// reap takes the completions of sends, and makes progress.
func (p *player) reap() error {
	n, err := p.scq.Poll(p.wcs)
	for i := range p.wcs[:n] {
		err = errors.Join(err, p.wcs[i].Err())
	}
	p.live -= n
	return err
}

// await waits for message n, or the mark of the end.
func (p *player) await(n uint32, stop interface{ Load() bool }) (end bool, err error) {
	for turn := 1; ; turn++ {
		if p.Op == ib.WRRDMAWrite {
			switch atomic.LoadUint32(p.seen) {
			case n:
				return false, nil
			case stopMark:
				return true, nil
			}
			if err := p.reap(); err != nil {
				return false, err
			}
		} else {
			got, err := p.take(p.rcq, p.wcs[:1])
			if err != nil {
				return false, err
			}
			if got > 0 {
				p.used = true
				return atomic.LoadUint32(p.seen) == stopMark, nil
			}
		}
		if turn%1024 == 0 && stop != nil && stop.Load() {
			return true, nil
		}
	}
}

// ping asks and times.
func (s *side) ping() (result, error) {
	p := s.player()
	samples := make([]int64, 0, 1<<20)
	var u usage
	var end time.Time
	n := uint32(0)
	for now := time.Now(); ; {
		n++
		if n == warmUp {
			runtime.GC()
			u = snapshot()
			now, end = u.at, u.at.Add(s.Duration)
		}
		if err := p.hit(n); err != nil {
			return result{}, err
		}
		if _, err := p.await(n, nil); err != nil {
			return result{}, err
		}
		if n >= warmUp {
			then := time.Now()
			samples = append(samples, int64(then.Sub(now))/2)
			if now = then; now.After(end) || len(samples) == cap(samples) {
				break
			}
		}
	}
	r := since(u, uint64(len(samples)))
	if err := p.hit(stopMark); err != nil {
		return result{}, err
	}
	for p.live > 0 {
		if err := p.reap(); err != nil {
			return result{}, err
		}
	}
	r.Median, r.P99 = bench.Percentile(samples, 50), bench.Percentile(samples, 99)
	return r, nil
}

// pong answers until the mark of the end.
func (s *side) pong(stop interface{ Load() bool }) error {
	p := s.player()
	for n := uint32(1); ; n++ {
		end, err := p.await(n, stop)
		if end || err != nil {
			for err == nil && !stop.Load() {
				err = p.reap() // the client waits for its acknowledgement
			}
			return err
		}
		if err := p.hit(n); err != nil {
			return err
		}
	}
}
