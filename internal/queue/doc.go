// Package queue holds the rings between an application and the protocol: send
// queue, receive queue (of one queue pair or shared), completion queue with
// its arming rule.
package queue
