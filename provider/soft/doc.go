// Package soft is the software RDMA device: verbs over RoCEv2 on ordinary UDP
// sockets. It needs no NIC, no kernel module and no privilege, and its packets
// are those of hardware NICs and of Linux's rdma_rxe.
//
// NewProvider finds a device for every network interface that has an address;
// NewDevice makes one on a given port, for instance a simulated network.
package soft
