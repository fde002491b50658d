// Package vm boots a Linux kernel with rdma_rxe in QEMU, as a peer for tests: a guest without a disk, whose root is the
// host's root, read-only over 9p, so that it has whatever the host has installed. Guests and the processes under test meet
// in a network namespace of their own (Net), on a bridge with the addresses 10.77.0.1 and fd77::1; the guests are 10.77.0.2
// and fd77::2, 10.77.0.3 and fd77::3, and so on. Nothing of the host's network is touched.
//
// It needs Linux, root and what interop/setup.sh installs. It works only on Linux; elsewhere the package is empty.
package vm
