package shard

// Fail moves every queue pair to Err, apart from those in Reset: the device under
// them is gone. What they have to say is delivered before it returns. Whoever
// brings up a queue pair must look, under its shard's lock, whether that happened.
func (e *Engine) Fail() {
	by := make(map[*Shard][]*member)
	e.qps.each(func(m *member) { by[m.sh] = append(by[m.sh], m) })
	for _, s := range e.shards {
		env := s.Lock()
		for _, m := range by[s] {
			if !m.gone {
				m.qp.Fail(env)
			}
		}
		s.Unlock(nil)
	}
}

// Free makes every Sleep look whether it is ready, those to come too: it is called
// once, after what makes all of them ready.
func (e *Engine) Free() {
	close(e.freed)
	e.Rouse()
}
