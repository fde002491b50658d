// Package mem is registered memory: protection domains, regions, the key table
// and the checks that run before a byte moves. Every touch of registered
// memory goes through the guarded functions of this package (Copy, CRC,
// FetchAdd, CompareSwap): memory that has vanished under a registration is an
// error here, never a crash.
//
// Lookups take no lock. Who removes a region must therefore wait until nobody
// can still work with what a lookup gave (see [Table.Release]).
package mem
