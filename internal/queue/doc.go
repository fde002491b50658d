// Package queue holds the rings between an application and the protocol: send
// queue, receive queue (of one queue pair or shared), completion queue with
// its arming rule, and the check of work requests that all services share.
//
// A send queue is protected by the lock of its queue pair's shard; receive and
// completion queues have a lock of their own, which is a leaf: nothing is
// called and nothing else locked while it is held.
package queue
