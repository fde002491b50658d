// Package netns tests Verbena between hosts: processes in network namespaces that veth pairs, or tun devices and a relay of the
// tests' own, join. Every packet is captured and checked with the IP header that it really had, and the relay loses, repeats,
// delays and rewrites packets as networks do.
//
// The tests have the build tag interop and need Linux and root. They fail where they cannot run. The namespaces have no name:
// they are gone with the last process and descriptor, however the tests end.
package netns
