// Package transport is what the services of a queue pair (RC in internal/rc,
// UC and UD in internal/ud) have in common: the attributes they share, what a
// protocol step is given and may ask for (Env), the window towards one
// destination, and the walk over scatter/gather lists.
//
// Everything here runs under the lock of the queue pair's shard. Time is an
// argument: Env.Now, in nanoseconds of a monotonic clock.
package transport
