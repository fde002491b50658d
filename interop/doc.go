// Package interop tests Verbena against a real Linux kernel: rdma_rxe of Debian's 6.1 in QEMU (package vm), driven by Debian's
// own programs. The tests have the build tag interop and need Linux and root; make interop installs what they need and runs
// them. They fail where they cannot run.
package interop
