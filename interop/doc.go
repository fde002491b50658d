// Package interop tests Verbena against a real Linux kernel: rdma_rxe of Debian's 6.1 in QEMU (package vm), driven by Debian's own
// pingpong programs, and by two peers that do verbs as the tests tell them: peer.py on the kernel's device, this test binary on
// Verbena's. Connections are made by librdmacm's programs on one side and verbena's commands on the other, and by cmpeer.c and its
// likeness in this test binary, which tell every event. The tests have the build tag interop and need Linux and root; make interop
// installs what they need and runs them. They fail where they cannot run. With -capture DIR tcpdump looks at every pingpong and the
// captures of those that stalled stay.
package interop
