package cm

import (
	"net/netip"
	"slices"
	"syscall"
)

// ListenParams say what a listener wants.
type ListenParams struct {
	ServiceID uint64
	Mask      uint64 // bits of the service id that count; 0 is all
	// Local is the address to listen on: a zero Addr for every one, 0.0.0.0 for every IPv4 address, :: for every address, or every
	// IPv6 address with AFOnly. The address counts to which the request was sent.
	Local   netip.Addr
	AFOnly  bool
	Backlog int // undecided requests at a time; 0 or less is 1024
	Context any
}

// Listener gets the requests for a service id.
type Listener struct {
	Context any // the owner's

	id, mask uint64
	local    netip.Addr
	afOnly   bool
	backlog  int
	pending  int
	closed   bool
}

// ServiceID returns the service id that it listens on.
func (l *Listener) ServiceID() uint64 { return l.id }

// Pending returns how many requests wait in the backlog.
func (l *Listener) Pending() int { return l.pending }

// State returns StateListen, StateIdle once it is closed.
func (l *Listener) State() State {
	if l.closed {
		return StateIdle
	}
	return StateListen
}

// rank says how well an address fits: 0 not, 3 exactly.
func (l *Listener) rank(to netip.Addr) int {
	switch {
	case !l.local.IsValid():
		return 1
	case !l.local.IsUnspecified():
		if l.local == to || l.local.WithZone("") == to.WithZone("") && (l.local.Zone() == "" || to.Zone() == "") {
			return 3
		}
		return 0
	case l.local.Is4() == to.Is4():
		return 2
	case l.local.Is6() && !l.afOnly:
		return 1
	}
	return 0
}

// listeners finds a listener: by whole service ids in a map, by masked ones in a list.
type listeners struct {
	exact  map[uint64][]*Listener
	masked []*Listener
}

// find returns the listener that fits best. Known says whether any has the service id: if known but nil, none has the address.
func (s *listeners) find(id uint64, to netip.Addr) (best *Listener, known bool) {
	to = to.Unmap()
	rank := 0
	look := func(l *Listener) {
		known = true
		if r := l.rank(to); r > rank {
			best, rank = l, r
		}
	}
	for _, l := range s.exact[id] {
		look(l)
	}
	if known { // a whole service id goes before a masked one
		return best, true
	}
	for _, l := range s.masked {
		if id&l.mask == l.id {
			look(l)
		}
	}
	return best, known
}

// Listen makes a listener. EADDRINUSE: there is one of this service id, mask and address. Which ports and addresses may be shared
// otherwise is the owner's matter.
func (m *Manager) Listen(p ListenParams) (*Listener, error) {
	l := &Listener{
		Context: p.Context, id: p.ServiceID, mask: p.Mask, local: p.Local.Unmap(), afOnly: p.AFOnly, backlog: p.Backlog,
	}
	if l.mask == 0 {
		l.mask = ^uint64(0)
	}
	l.id &= l.mask
	if l.backlog <= 0 {
		l.backlog = DefaultBacklog
	}
	s := &m.listeners
	same := func(o *Listener) bool {
		return o.id == l.id && o.mask == l.mask && o.local == l.local && o.afOnly == l.afOnly
	}
	if slices.ContainsFunc(s.exact[l.id], same) || slices.ContainsFunc(s.masked, same) {
		return nil, syscall.EADDRINUSE
	}
	if l.mask == ^uint64(0) {
		s.exact[l.id] = append(s.exact[l.id], l)
	} else {
		s.masked = append(s.masked, l)
	}
	return l, nil
}

// Unlisten ends a listener. Requests that it has got stay: destroy those that nobody wants.
func (m *Manager) Unlisten(l *Listener) {
	l.closed = true
	s := &m.listeners
	is := func(o *Listener) bool { return o == l }
	s.masked = slices.DeleteFunc(s.masked, is)
	if rest := slices.DeleteFunc(s.exact[l.id], is); len(rest) > 0 {
		s.exact[l.id] = rest
	} else {
		delete(s.exact, l.id)
	}
}
