package rdmacm

import (
	"context"
	"sync"

	"github.com/verbena-rdma/verbena/verbs"
)

// completion is where the helpers poll one completion, kept so that nothing is
// allocated.
type completion struct {
	sync.Mutex
	wc [1]verbs.WC
}

// GetSendComp waits for the next completion of a send, READ or WRITE
// (rdma_get_send_comp); WRID of it is the context that was posted. That the work
// failed is no error of the call: see verbs.WC.Err. The ID's completion queues must
// not be shared, with other IDs or between sends and receives, or it returns what
// is not its own.
//
// It fails with ctx's error, with net.ErrClosed when the queue is destroyed, with
// EOVERFLOW when it was too small, with EIO when the device has gone away; EINVAL: the ID
// has none. Where C waits on the completion channel this call makes the device's progress
// itself, which is faster, and needs no channel; a notification that the
// application has asked for is left to it. With a context that is done it does not wait,
// but takes what is there. Several goroutines may wait.
func (id *ID) GetSendComp(ctx context.Context) (verbs.WC, error) {
	wc, err := id.helpers.sent.get(ctx, id.helpers.has().sendCQ)
	return wc, opErr("get_send_comp", err)
}

// GetRecvComp waits for the next completion of a receive (rdma_get_recv_comp), of
// the shared receive queue too. All else is as with GetSendComp.
func (id *ID) GetRecvComp(ctx context.Context) (verbs.WC, error) {
	wc, err := id.helpers.received.get(ctx, id.helpers.has().recvCQ)
	return wc, opErr("get_recv_comp", err)
}

func (c *completion) get(ctx context.Context, cq *verbs.CQ) (verbs.WC, error) {
	if cq == nil {
		return verbs.WC{}, errNoCQ
	}
	for {
		if wc, n, err := c.poll(cq); n > 0 || err != nil {
			return wc, err
		}
		// Completions that are there already end it at once.
		if err := cq.Wait(ctx); err != nil {
			return verbs.WC{}, err
		}
	}
}

func (c *completion) poll(cq *verbs.CQ) (wc verbs.WC, n int, err error) {
	c.Lock()
	defer c.Unlock()
	if n, err = cq.Poll(c.wc[:]); n > 0 {
		wc = c.wc[0]
	}
	return wc, n, err
}
