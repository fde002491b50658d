package cmtime

import (
	"context"
	"sync"

	"github.com/verbena-rdma/verbena/rdmacm"
)

// queue holds IDs for a goroutine that deals with them in order.
type queue struct {
	mu   sync.Mutex
	ids  []*rdmacm.ID
	more chan struct{} // holds a token when there may be some
}

func (q *queue) put(id *rdmacm.ID) {
	q.mu.Lock()
	q.ids = append(q.ids, id)
	q.mu.Unlock()
	select {
	case q.more <- struct{}{}:
	default:
	}
}

func (q *queue) take() []*rdmacm.ID {
	q.mu.Lock()
	defer q.mu.Unlock()
	ids := q.ids
	q.ids = nil
	return ids
}

// server has the connections that clients made.
type server struct {
	requests, ended queue
	mu              sync.Mutex
	ids             map[*rdmacm.ID]bool // those that are not destroyed
	ctx             context.Context
	stop            context.CancelFunc
	workers         sync.WaitGroup
}

func newServer() *server {
	s := &server{ids: make(map[*rdmacm.ID]bool)}
	s.requests.more, s.ended.more = make(chan struct{}, 1), make(chan struct{}, 1)
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.work(&s.requests, s.accept)
	s.work(&s.ended, s.end)
	return s
}

func (s *server) work(q *queue, f func(*rdmacm.ID)) {
	s.workers.Go(func() {
		for {
			select {
			case <-q.more:
			case <-s.ctx.Done():
				return
			}
			for _, id := range q.take() {
				f(id)
			}
		}
	})
}

func (s *server) accept(id *rdmacm.ID) {
	s.mu.Lock()
	s.ids[id] = true
	s.mu.Unlock()
	err := newQP(id)
	if err == nil {
		err = id.Accept(s.ctx, nil)
	}
	if err != nil {
		_ = id.Reject(nil) // fails if the client has given up
		s.destroy(s.ctx, id)
	}
}

// end answers the end of a connection.
func (s *server) end(id *rdmacm.ID) {
	_ = id.Disconnect(s.ctx) // fails if it was never made
	s.destroy(s.ctx, id)
}

func (s *server) destroy(ctx context.Context, id *rdmacm.ID) {
	s.mu.Lock()
	known := s.ids[id]
	delete(s.ids, id)
	s.mu.Unlock()
	if !known {
		return // its failure and its end were told
	}
	_ = id.DestroyQP(ctx)
	_ = id.Destroy(ctx)
}

// close ends what is left.
func (s *server) close(ctx context.Context) {
	s.stop()
	s.workers.Wait()
	for _, id := range s.requests.take() {
		_ = id.Reject(nil)
		_ = id.Destroy(ctx)
	}
	for id := range s.ids {
		_ = id.DestroyQP(ctx)
		_ = id.Destroy(ctx)
	}
}
