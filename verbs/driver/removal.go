package driver

// Remover is implemented by devices that may go away while they are open, as when
// a network card is pulled out or an interface is deleted.
type Remover interface {
	// Removed gives a channel that is closed when the device is gone for good and
	// has raised DEVICE_FATAL and every event that followed from it. From
	// DEVICE_FATAL on calls that need the device fail with EIO; queue pairs are in
	// Err, their work is flushed, objects can still be destroyed, and CQ.Wait on an
	// empty queue fails with EIO too.
	Removed() <-chan struct{}
}
