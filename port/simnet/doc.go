// Package simnet is a simulated network with virtual time: ports for devices
// that run on one event loop, links that lose, duplicate, reorder, corrupt,
// delay and partition by a seed, and hooks over decoded packets.
//
//	n := simnet.New(seed)
//	a, b := n.NewPort(simnet.Config{}), n.NewPort(simnet.Config{})
//	n.Attach(a, devA.Turn)
//	n.Attach(b, devB.Turn)
//	n.Filter(simnet.Nth(2, func(e *simnet.Event) bool { return e.Op == roce.OpRCAcknowledge }, simnet.Drop))
//	... post work ...
//	n.Kick(a)
//	ok := n.Run(done, 1e9)
//
// A Net and all that is on it belongs to one goroutine. Nothing reads a clock
// and nothing is random but by the seed: the same seed and the same calls give
// the same run, packet for packet.
package simnet
