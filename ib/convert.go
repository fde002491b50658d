package ib

import (
	"strconv"
	"time"
)

// MTUFromBytes gives the code for a path MTU of exactly n payload bytes.
// EINVAL: n is none of 256, 512, 1024, 2048, 4096.
func MTUFromBytes(n int) (MTU, error) {
	for m := MTU256; m <= MTU4096; m++ {
		if m.Bytes() == n {
			return m, nil
		}
	}
	return 0, &ParamError{Param: "mtu", Value: strconv.Itoa(n), Want: "256, 512, 1024, 2048 or 4096"}
}

// linkOverhead is what Linux's rdma_rxe subtracts from the MTU of a network
// interface: the largest stack of IP, UDP, transport headers and ICRC.
const linkOverhead = 80

// MTUFromLink gives the active MTU of a RoCE port on a network interface with
// an IP MTU of netdevMTU bytes: the largest code that fits with all headers
// (80 bytes), as Linux's rdma_rxe reckons; 256 when even that does not fit.
func MTUFromLink(netdevMTU int) MTU {
	for m := MTU4096; m > MTU256; m-- {
		if m.Bytes() <= netdevMTU-linkOverhead {
			return m
		}
	}
	return MTU256
}

// rnrTimer decodes RNR NAK timer codes (IBA table 45), in units of 10 us.
var rnrTimer = [32]int32{
	65536, 1, 2, 3, 4, 6, 8, 12,
	16, 24, 32, 48, 64, 96, 128, 192,
	256, 384, 512, 768, 1024, 1536, 2048, 3072,
	4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
}

// RNRTimer gives the least time that a requester waits after an RNR NAK with
// the timer code. Only the low 5 bits count. Code 0 is the longest, 655.36 ms.
func RNRTimer(code uint8) time.Duration {
	return time.Duration(rnrTimer[code&31]) * 10 * time.Microsecond
}

// RNRTimerCode gives the code of the shortest RNR timer that is not below d;
// 0 (655.36 ms) when d is longer than all.
func RNRTimerCode(d time.Duration) uint8 {
	for code := uint8(1); code < 32; code++ {
		if RNRTimer(code) >= d {
			return code
		}
	}
	return 0
}

// MaxTimeout is the largest local ACK timeout code.
const MaxTimeout = 31

// AckTimeout gives the local ACK timeout of a code: 4.096 us x 2^code, and 0
// for code 0, which means no timer (IBA 9.7.6.1.3). Only the low 5 bits count.
func AckTimeout(code uint8) time.Duration {
	code &= 31
	if code == 0 {
		return 0
	}
	return 4096 * time.Nanosecond << code
}

// AckTimeoutCode gives the code of the shortest local ACK timeout that is not
// below d: 0, no timer, for d <= 0, and 31 when d is longer than all.
func AckTimeoutCode(d time.Duration) uint8 {
	if d <= 0 {
		return 0
	}
	for code := uint8(1); code < MaxTimeout; code++ {
		if AckTimeout(code) >= d {
			return code
		}
	}
	return MaxTimeout
}
