package mem

import "errors"

// Persister makes memory durable: length bytes from the page that starts at addr,
// of whatever was registered. ErrFault: it is not mapped any more; any other
// error is the storage's.
type Persister func(addr, length uintptr) error

// SetPersister gives the table the means to make memory durable; f nil: it has
// none. To be called before the table is used.
func (t *Table) SetPersister(pageSize int, f Persister) {
	t.pageSize, t.persister = pageSize, f
}

// CanPersist reports whether the table can make memory durable.
func (t *Table) CanPersist() bool { return t.persister != nil }

// Persist makes what was written to b, which is registered, durable. It takes as
// long as the storage behind b does.
func (t *Table) Persist(b []byte) error {
	switch {
	case t.persister == nil:
		return errors.ErrUnsupported
	case len(b) == 0 || isNull(b):
		return nil
	}
	at := address(b)
	before := at & uintptr(t.pageSize-1)
	return t.persister(at-before, before+uintptr(len(b)))
}
