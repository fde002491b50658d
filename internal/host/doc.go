// Package host lets the processes of a user share the addresses of a network
// interface without a daemon: UDP port 4791 is there once for each address, but any
// number of processes have RDMA devices.
//
// A group is the members of one interface: same user, user namespace, network namespace.
// A member is one open device. Each has a slot, 1 to 127, by which the kernel steers to it what arrives
// (destination queue pair number >> 17), and by which management datagrams are routed (communication ID >> 25).
// Slot 0 is everybody's: queue pair 1, and numbers of nobody.
//
// What the members share lives as long as one of them:
//
//	rendezvous  a listening socket with an abstract name. All members hold it, so the name is
//	            taken exactly as long as there is a group: who can bind it founds one, who cannot asks
//	            there. Whoever of the members is awake answers.
//	root        a datagram socket that is connected to itself. Its first datagram, which is
//	            only ever peeked at, carries the descriptors of all that follows.
//	directory   a memfd of fixed size: slots, port claims, connection records, the steward
//	mailboxes   a datagram socket connected to itself for each slot
//	keepers     sockets of the same kind, one for each address that is in use: the first
//	            datagram carries the address's UDP sockets, which so stay open, in their order, whoever goes
//
// A slot belongs to who has bound its abstract name, which the kernel gives back when the
// process dies: so it can neither be lost nor be had twice. Whatever else is in the directory
// is written by the others, which may die at any instruction, and is taken for input: bounded,
// checked, and void when it was written by a generation of a slot that is gone.
//
// The steward is the member that reads slot 0 and speaks for the dead. It is a role, not
// an authority: two at once do no harm. It watches all members, all members watch it.
package host
