package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/verbena-rdma/verbena/rdmacm"
)

// serve accepts all that comes, without a word about it.
func (p *peerProgram) serve(name string, at netip.AddrPort) (string, error) {
	ch, err := p.m.NewEventChannel()
	if err != nil {
		return "", err
	}
	l, err := p.m.NewID(ch, rdmacm.PSTCP, nil)
	if err != nil {
		return "", err
	}
	if err := errors.Join(l.Bind(at), l.Listen(8192)); err != nil {
		return "", err
	}
	ctx, stop := context.WithCancel(p.ctx)
	p.closers = append(p.closers, func() error {
		stop()
		p.busy.Wait()
		return errors.Join(l.Destroy(p.ctx), ch.Close())
	})
	p.busy.Add(1)
	go func() {
		defer p.busy.Done()
		for {
			e, err := ch.Get(ctx)
			if err != nil {
				return
			}
			id, t := e.ID, e.Type
			err = e.Ack()
			switch t {
			case rdmacm.EventConnectRequest:
				err = errors.Join(err, id.CreateQP(nil, cmAttr()), id.Accept(ctx, peerParams()))
			case rdmacm.EventDisconnected:
				err = errors.Join(err, id.Disconnect(ctx), id.DestroyEP(ctx))
			case rdmacm.EventRejected, rdmacm.EventUnreachable:
				err = errors.Join(err, id.DestroyEP(ctx))
			}
			if err != nil {
				p.say("! %s %v", name, err)
			}
		}
	}()
	return l.LocalAddr().String(), nil
}

// flood makes connections, several at a time, and gives how long that took in ns: with
// "keep" until all of them are there, with "drop" each is ended at once.
func (p *peerProgram) flood(to netip.AddrPort, f []string) (string, error) {
	count, _ := strconv.Atoi(f[0])
	workers, _ := strconv.Atoi(f[1])
	keep := f[2] == "keep"
	var next atomic.Int64
	var wg sync.WaitGroup
	ids := make([]*rdmacm.ID, count)
	errs := make([]error, workers)
	begin := time.Now()
	for w := range workers {
		wg.Go(func() {
			for errs[w] == nil {
				i := int(next.Add(1)) - 1
				if i >= count {
					return
				}
				ids[i], errs[w] = p.m.CreateEP(p.ctx, &rdmacm.AddrInfo{Dst: to}, nil, cmAttr())
				if errs[w] == nil {
					errs[w] = ids[i].Connect(p.ctx, peerParams())
				}
				if errs[w] == nil && !keep {
					errs[w] = errors.Join(ids[i].Disconnect(p.ctx), ids[i].DestroyEP(p.ctx))
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	if keep {
		for _, id := range ids {
			if id != nil {
				errs = append(errs, id.DestroyEP(p.ctx))
			}
		}
	}
	return strconv.FormatInt(int64(took), 10), errors.Join(errs...)
}

// Two processes at one address connect 1,000 queue pairs; ms/1000qp is what it is about.
func BenchmarkConnect1000QueuePairs(b *testing.B) {
	n := newNetwork(b)
	a := loopAddr()
	dev := fmt.Sprintf("lo=%v", a)
	s, c := n.spawn(b, dev), n.spawn(b, dev)
	at := s.do("serve s %v:0", a)
	var took time.Duration
	for range b.N {
		took += ns(c.do("flood c %s 1000 64 keep", at))
	}
	b.ReportMetric(float64(took.Milliseconds())/float64(b.N), "ms/1000qp")
	b.ReportMetric(0, "ns/op")
	c.end()
	s.end()
}

func ns(s string) time.Duration {
	n, _ := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	return time.Duration(n)
}

// Connections that are made and ended, from 1, 10 and 50 processes to one, all at one
// address.
func BenchmarkConnectRateOfProcesses(b *testing.B) {
	for _, many := range []int{1, 10, 50} {
		b.Run(strconv.Itoa(many), func(b *testing.B) {
			n := newNetwork(b)
			a := loopAddr()
			dev := fmt.Sprintf("lo=%v", a)
			s := n.spawn(b, dev)
			at := s.do("serve s %v:0", a)
			var clients []*process
			for range many {
				clients = append(clients, n.spawn(b, dev))
			}
			each := max(2000/many, 20)
			b.ResetTimer()
			begin := time.Now()
			for range b.N {
				var wg sync.WaitGroup
				for _, c := range clients {
					wg.Go(func() {
						if r := c.try("flood c %s %d 8 drop", at, each); strings.HasPrefix(r, "error") {
							b.Error(r)
						}
					})
				}
				wg.Wait()
			}
			b.ReportMetric(float64(b.N*many*each)/time.Since(begin).Seconds(), "conn/s")
			b.ReportMetric(0, "ns/op")
			for _, c := range clients {
				c.end()
			}
			s.end()
		})
	}
}
