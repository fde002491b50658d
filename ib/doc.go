// Package ib is the vocabulary of the InfiniBand verbs: identifiers, states,
// opcodes, statuses, flags and the small conversions between them. It holds
// values only: no memory, no clock, no network.
//
// The numbers are those of the C interface (infiniband/verbs.h), so that a
// value can cross into C, a log or a packet unchanged.
package ib
