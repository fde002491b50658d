package rdmacm

import (
	"fmt"
	"syscall"

	"github.com/verbena-rdma/verbena/ib"
)

// option calls f for an ID that is alive.
func (id *ID) option(f func() error) error {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	err := id.alive()
	if err == nil {
		err = f()
	}
	return opErr("set_option", err)
}

// SetTOS sets the traffic class of connections, IP's type of service
// (RDMA_OPTION_ID_TOS). It counts from ResolveRoute, Connect for datagrams and JoinMulticast on. A
// request's ID has what the peer has chosen.
func (id *ID) SetTOS(tos uint8) error {
	return id.option(func() error { id.tos = tos; return nil })
}

// TOS is what SetTOS has set.
func (id *ID) TOS() uint8 { return get(id, func() uint8 { return id.tos }) }

// SetReuseAddr allows other IDs that allow it too to be bound to the same address and
// port (RDMA_OPTION_ID_REUSEADDR). To listen an ID must be the only one there, and it does not
// share from then on. For other processes at the same addresses counts what it was at Bind. EINVAL:
// the ID listens.
func (id *ID) SetReuseAddr(on bool) error {
	return id.option(func() error {
		if id.state == stateListen {
			return syscall.EINVAL
		}
		id.reuse = on
		return nil
	})
}

// ReuseAddr tells whether it is allowed.
func (id *ID) ReuseAddr() bool { return get(id, func() bool { return id.reuse }) }

// SetAFOnly keeps an ID that is bound to :: from IPv4 (RDMA_OPTION_ID_AFONLY). EINVAL: it
// listens or is resolved already. Other processes heed what it was at Bind.
func (id *ID) SetAFOnly(on bool) error {
	return id.option(func() error {
		if id.state != stateIdle && id.state != stateBound {
			return syscall.EINVAL
		}
		id.afOnly = on
		return nil
	})
}

// AFOnly tells whether it is kept from it.
func (id *ID) AFOnly() bool { return get(id, func() bool { return id.afOnly }) }

// SetAckTimeout sets the ACK timeout of the queue pair, 4.096 us to the power of two,
// 0 to 31; 0: none (RDMA_OPTION_ID_ACK_TIMEOUT). The peer is told in the request, where 0
// stands for a default. It counts from ResolveRoute and Accept on. EINVAL: beyond 31, or the type of
// queue pair acknowledges nothing.
func (id *ID) SetAckTimeout(timeout uint8) error {
	return id.option(func() error {
		switch {
		case timeout > ib.MaxTimeout:
			return fmt.Errorf("timeout: %d, want at most %d: %w", timeout, ib.MaxTimeout, syscall.EINVAL)
		case id.typ != ib.RC && id.typ != ib.XRCSend:
			return fmt.Errorf("queue pairs of type %v acknowledge nothing: %w", id.typ, syscall.EINVAL)
		}
		id.ackTimeout, id.ackSet = timeout, true
		return nil
	})
}

// AckTimeout is what was set; ok is false if nothing was.
func (id *ID) AckTimeout() (timeout uint8, ok bool) {
	id.m.mu.Lock()
	defer id.m.mu.Unlock()
	return id.ackTimeout, id.ackSet
}
