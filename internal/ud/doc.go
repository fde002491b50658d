// Package ud implements the transport services without acknowledgements:
// unreliable connection (UC) and unreliable datagram (UD).
//
// Both complete a send when its last packet was given to the network. A send
// that fails at home moves the queue pair to SQE: sends behind it are flushed,
// receives go on, and a modify to RTS brings it back (IBA 10.3.1).
// What arrives and cannot be delivered is dropped and counted; the sender never
// learns of it.
package ud
