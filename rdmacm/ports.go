package rdmacm

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"github.com/verbena-rdma/verbena/verbs/driver"
)

// Ephemeral ports, as Linux has them by default.
const (
	portMin = 32768
	portMax = 60999
)

// portError tells that a port is in use. Where a wildcard is the reason Linux's rdma_cm
// says EADDRNOTAVAIL, while sockets, and everybody who reads the message, say
// EADDRINUSE: it is both.
type portError struct {
	addr     netip.AddrPort
	wildcard bool
	why      error // of another process; nil: an ID of this one
}

func (e *portError) Error() string {
	at, text := e.addr.String(), syscall.EADDRINUSE.Error()
	if e.why != nil {
		text = e.why.Error()
	}
	if strings.Contains(text, at) {
		return text
	}
	return at + ": " + text
}

// Unwrap gives the errnos.
func (e *portError) Unwrap() []error {
	if e.wildcard {
		return []error{syscall.EADDRINUSE, syscall.EADDRNOTAVAIL}
	}
	return []error{syscall.EADDRINUSE}
}

// conflict looks for an ID that keeps id from its port; reuse tells whether id would
// share it. The caller holds mu.
func (m *Manager) conflict(id *ID, at netip.AddrPort, reuse bool) error {
	for _, o := range m.ports[id.ps][at.Port()] {
		if o == id || reuse && o.reuse {
			continue
		}
		a, b := at.Addr(), o.src.Addr()
		if a.Is4() != b.Is4() && id.only() && o.only() {
			continue
		}
		switch {
		case a.IsUnspecified() || b.IsUnspecified():
			return &portError{addr: at, wildcard: true}
		case a == b || a.WithZone("") == b.WithZone("") && (a.Zone() == "" || b.Zone() == ""):
			return &portError{addr: at}
		}
	}
	return nil
}

// only reports whether an ID keeps to its address family.
func (id *ID) only() bool { return id.afOnly || id.src.Addr().Is4() }

// reserve gives id its address and port, a free one for port 0, among all processes that
// have the addresses: of the device, nil: of all devices. The caller holds mu.
func (m *Manager) reserve(id *ID, d *device, at netip.AddrPort) error {
	old := id.src
	id.src = at
	if at.Port() != 0 {
		err := m.conflict(id, at, id.reuse)
		if err == nil {
			if err = id.claim(d, at, 0); err != nil {
				err = claimError(at, err)
			}
		}
		if err != nil {
			id.src = old
			return err
		}
		m.hold(id)
		return nil
	}
	const n = portMax - portMin + 1
	first := int(m.rand() % n)
	for i := range n {
		p := uint16(portMin + (first+i)%n)
		if len(m.ports[id.ps][p]) > 0 {
			continue
		}
		at := netip.AddrPortFrom(at.Addr(), p)
		switch err := id.claim(d, at, driver.ClaimUnused); {
		case errors.Is(err, syscall.EADDRINUSE):
			continue
		case err != nil:
			id.src = old
			return err
		}
		id.src = at
		m.hold(id)
		return nil
	}
	id.src = old
	return fmt.Errorf("no port is free: %w", syscall.EADDRNOTAVAIL)
}

func (m *Manager) hold(id *ID) {
	space := m.ports[id.ps]
	if space == nil {
		space = make(map[uint16][]*ID)
		m.ports[id.ps] = space
	}
	space[id.src.Port()] = append(space[id.src.Port()], id)
	id.holds = true
}

// release gives the port back. The caller holds mu.
func (id *ID) release() {
	if !id.holds {
		return
	}
	id.holds = false
	id.unclaim(nil)
	space, p := id.m.ports[id.ps], id.src.Port()
	if rest := slices.DeleteFunc(space[p], func(o *ID) bool { return o == id }); len(rest) > 0 {
		space[p] = rest
	} else {
		delete(space, p)
	}
}
