// Package dissect holds captures of devices against Wireshark's dissector: tshark
// takes every packet apart on its own, and says of each field what our headers say.
// It needs no privilege and no kernel module, only tshark.
package dissect
