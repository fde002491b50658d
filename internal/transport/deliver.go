package transport

import (
	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Raise adds an event to what is to be delivered: for what happens outside of any
// shard.
func (d *Deliveries) Raise(sink driver.EventSink, t ib.EventType) {
	d.events = append(d.events, event{sink, t})
}
