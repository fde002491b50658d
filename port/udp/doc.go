// Package udp carries RoCEv2 packets over ordinary UDP sockets. It needs no
// root, no capability and no kernel module.
//
// A port has one unconnected socket for each local address, bound to UDP port
// 4791 of it, so packets leave from the address that their ICRC names. On
// Linux such a socket, told never to fragment, sends IP identification 0 and
// DF, and numbers the segments of one GSO send 0, 1, 2 ...: just what the ICRC
// of package pkt counts on. UDP checksums are always on. Sockets are bound
// without SO_REUSEADDR, with which another user could take the port over.
//
// On Linux batches go through sendmmsg and recvmmsg with segmentation offload
// in both directions, on descriptors that Go's netpoller never sees. Elsewhere
// it is one datagram for each system call through package net.
package udp
