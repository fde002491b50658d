package driver

// LocalDMAReacher is a domain that can tell what its local DMA key reaches.
type LocalDMAReacher interface {
	// LocalDMAReaches reports whether all of b is in one buffer of the domain.
	LocalDMAReaches(b []byte) bool
}
