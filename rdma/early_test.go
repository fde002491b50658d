package rdma

import (
	"testing"

	"github.com/verbena-rdma/verbena/rdmacm"
)

// What another Accept gets of a connection that one has taken already, and not moved to the
// Host's channel yet, still ends the connection.
func TestEarlyEnd(t *testing.T) {
	for _, typ := range []rdmacm.EventType{rdmacm.EventDisconnected, rdmacm.EventRejected, rdmacm.EventDeviceRemoval} {
		m := rdmacm.NewManager()
		c := &Conn{down: make(chan struct{})}
		id, err := m.NewID(nil, rdmacm.PSTCP, c)
		if err != nil {
			t.Fatal(err)
		}
		c.id = id
		l := &Listener{pending: make(map[*Conn]struct{})}
		if got, err := l.event(&rdmacm.Event{ID: id, Type: typ}); got != nil || err != nil {
			t.Errorf("%v: %v, %v", typ, got, err)
		}
		select {
		case <-c.down:
		default:
			t.Errorf("%v is lost", typ)
		}
		if err := id.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}
