// Package simtest checks the software device by simulation: random work over a
// bad network (port/simnet), compared with a model. It holds tests only.
//
// One seed is one run: a topology of two or three devices, queue pairs of all
// types (XRC too), multicast groups, windows, fast registration and other keys
// that come and go, link conditions, and random posts, faults, resets and destroys
// until about 20,000 packets were sent. The model knows, of every work request,
// which results are possible; of every byte of registered memory, who may change
// it and to what; of every key, for whom and what it is good. A failing seed prints how to run it again:
//
//	go test ./internal/simtest -run TestSimulation -sim.seed=12345 -v
package simtest
