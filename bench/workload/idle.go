package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/verbena-rdma/verbena/bench"
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs"
)

// idleDepth is the depth of both queues of an idle queue pair.
const idleDepth = 16

// idleResult is what the child found.
type idleResult struct {
	Bytes uint64 `json:"bytes"` // heap and what else Go got from the system, whichever is more
}

// idleMemory measures n connected queue pairs that do nothing: bytes for each.
func idleMemory(ctx context.Context, o bench.Options, name string, n int) (_ []bench.Measurement, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	a, b := addresses()
	c, err := bench.StartChild(ctx, roleIdle, o.Cores[0], job{QPs: n, Addr: a, Other: b})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	var r idleResult
	if err := c.Read(&r); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return []bench.Measurement{{Name: name, Unit: bench.Bytes, Value: float64(r.Bytes) / float64(n)}}, nil
}

// idle creates the queue pairs of the job and tells what they cost.
func idle(args json.RawMessage, _ *json.Decoder, out *json.Encoder) error {
	s := &side{}
	if err := json.Unmarshal(args, &s.job); err != nil {
		return err
	}
	if err := s.open(); err != nil {
		return err
	}
	defer s.dev.Close()
	create := func(n int) error {
		for range n {
			qp, err := s.pd.CreateQP(&verbs.QPInitAttr{
				SendCQ: s.scq, RecvCQ: s.rcq, Type: ib.RC,
				Cap: ib.QPCap{MaxSendWR: idleDepth, MaxRecvWR: idleDepth, MaxSendSGE: 1, MaxRecvSGE: 1},
			})
			if err != nil {
				return err
			}
			s.qps = append(s.qps, qp)
			if err := s.connect(qp, ib.QPN(1000+len(s.qps))); err != nil {
				return err
			}
		}
		return nil
	}
	// The first one pays for what is made once.
	if err := create(1); err != nil {
		return err
	}
	before := heap()
	if err := create(s.QPs); err != nil {
		return err
	}
	after := heap()
	runtime.KeepAlive(s.qps)
	return out.Encode(idleResult{Bytes: after - min(before, after)})
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
