package queue

// moderation holds notifications back until enough completions have come or the
// oldest of them has waited long enough. Errors are told at once.
type moderation struct {
	most   int   // completions that make a notification, 0 = any number that comes in the period
	period int64 // ns

	count  int   // completions that would have made one
	at     int64 // when the notification is due, 0 = none waits
	listed bool  // who pushed asks Held and Release
}

// enough counts a completion and reports whether the notification is to leave.
func (m *moderation) enough(now int64) bool {
	if m.at == 0 {
		m.at = max(now+m.period, 1)
	}
	m.count++
	return m.most > 0 && m.count >= m.most || now >= m.at
}

// Moderate makes notifications wait for most completions, 0 for any number, but
// not longer than period ns; a period of 0 ends that. A notification that waits is
// due now: true tells the caller to call Notify.
func (c *CQ) Moderate(most int, period int64) (fire bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.mod
	if m == nil {
		m = new(moderation)
	}
	if fire = m.at != 0; fire {
		c.announce()
	}
	m.most, m.period = most, period
	c.mod = m
	if period == 0 && !m.listed {
		c.mod = nil
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
// until a push tells it to again.
func (c *CQ) Release(now int64) (fire, held bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.mod
	if m == nil {
		return false, false
	}
	if m.at > now {
		return false, true
	}
	if fire = m.at != 0; fire {
		c.announce()
	}
	m.listed = false
	if m.period == 0 {
		c.mod = nil
	}
	return fire, false
}
