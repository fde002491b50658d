// Package shard is where the protocol meets the network: locks, turns and
// timers.
//
// A Shard is a lock with the queue pairs that it protects, their timers and
// their send batch. It is not a goroutine: whoever holds the lock makes
// progress. A post takes the lock of its queue pair's shard and sends inline.
// Received packets are read by whoever holds the Engine's receive lock (an
// application that polls, one that waits, or the background thread when nobody
// does), and are handed to the shards of the queue pairs that they are for.
//
// Order of locks: receive lock, then one shard's, then those of completion and
// receive queues. Nothing calls the application while any of them is held.
package shard
