package rdmacm

// Left counts what a manager has: IDs, ports in use, and connections of the protocol,
// those in TIMEWAIT included.
func (m *Manager) Left() (ids, ports, conns int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, space := range m.ports {
		ports += len(space)
	}
	for _, d := range m.devs {
		conns += d.cm.Conns()
	}
	return len(m.ids), ports, conns
}
