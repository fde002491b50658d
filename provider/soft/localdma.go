package soft

// LocalDMAReaches implements driver.LocalDMAReacher.
func (p *pd) LocalDMAReaches(b []byte) bool { return p.mem.Reaches(b) }
