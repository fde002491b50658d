package target

import (
	"context"
	"time"
)

// beat notes that the client has answered a post.
func (c *conn) beat() {
	c.out.Add(-1)
	c.beats.Add(1)
}

// watch ends the clients that answer nothing for as long as the target is patient. A
// client that never makes room for its responses, say, is asked again for ever (RNR
// retry 7 is its own choice), and would keep memory that is for all.
func (t *Target) watch(ctx context.Context) {
	tick := time.NewTicker(t.cfg.Patience)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, c := range t.silent() {
			c.shut("it answers nothing", nil)
		}
	}
}

// silent are the clients of which nothing came since the last look, and all the while
// something was to come.
func (t *Target) silent() (list []*conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.conns {
		due, beats := c.out.Load() > 0, c.beats.Load()
		if due && c.due && beats == c.was {
			list = append(list, c)
		}
		c.due, c.was = due, beats
	}
	return list
}
