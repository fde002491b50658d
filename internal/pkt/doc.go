// Package pkt holds packets on their way between the protocol and a port: the
// batch of datagrams that a turn sends (Tx) and the batch that it received
// (Rx). Headers and trailers live in the batch's own arena, payload is
// referenced in place, so that a packet is built without a copy or an
// allocation.
package pkt
