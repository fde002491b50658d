package queue

// moderation holds notifications back until enough completions have come or the
// oldest of them has waited long enough. Errors are told at once.
type moderation struct {
	most   int   // completions that make a notification, 0 = any number that comes in the period
	period int64 // ns

	count int   // completions that would have made one
	at    int64 // when the notification is due, 0 = none waits
}

// enough counts a completion and reports whether the notification is to leave;
// first: it begins to wait.
func (m *moderation) enough(now int64) (leave, first bool) {
	if first = m.at == 0; first {
		m.at = max(now+m.period, 1)
	}
	m.count++
	leave = m.most > 0 && m.count >= m.most || now >= m.at
	return leave, first && !leave
}

// Moderate makes notifications wait for most completions, 0 for any number, but
// not longer than period ns; a period of 0 ends that. A notification that waits is
// due now: true tells the caller to call Notify.
func (c *CQ) Moderate(most int, period int64) (fire bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if fire = c.mod != nil && c.mod.at != 0; fire {
		c.announce()
	}
	c.mod = nil
	if period > 0 {
		c.mod = &moderation{most: most, period: period}
	}
	return fire
}

// Held is when the notification that waits is due, 0 if none does.
func (c *CQ) Held() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mod == nil {
		return 0
	}
	return c.mod.at
}

// Release lets a notification leave that is due at the time now: fire tells the
// caller to call Notify. held: one waits still; else the caller asks no more,
// until a push tells it to again. Several may ask: it leaves once.
func (c *CQ) Release(now int64) (fire, held bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mod == nil || c.mod.at == 0 {
		return false, false
	}
	if c.mod.at > now {
		return false, true
	}
	c.announce()
	return true, false
}
