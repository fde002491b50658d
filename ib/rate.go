package ib

// Rate is a static rate code (enum ibv_rate). The numbers have no order.
type Rate uint8

// Static rates. RateMax is the port's own rate.
const (
	RateMax      Rate = 0
	Rate2_5Gbps  Rate = 2
	Rate5Gbps    Rate = 5
	Rate10Gbps   Rate = 3
	Rate20Gbps   Rate = 6
	Rate30Gbps   Rate = 4
	Rate40Gbps   Rate = 7
	Rate60Gbps   Rate = 8
	Rate80Gbps   Rate = 9
	Rate120Gbps  Rate = 10
	Rate14Gbps   Rate = 11
	Rate56Gbps   Rate = 12
	Rate112Gbps  Rate = 13
	Rate168Gbps  Rate = 14
	Rate25Gbps   Rate = 15
	Rate100Gbps  Rate = 16
	Rate200Gbps  Rate = 17
	Rate300Gbps  Rate = 18
	Rate28Gbps   Rate = 19
	Rate50Gbps   Rate = 20
	Rate400Gbps  Rate = 21
	Rate600Gbps  Rate = 22
	Rate800Gbps  Rate = 23
	Rate1200Gbps Rate = 24
)

// rates is indexed by the code. mult is in units of 2.5 Gbit/s, 0 where the C
// interface has none: those rates are not multiples.
var rates = [...]struct {
	name string
	mbps int
	mult int
}{
	Rate2_5Gbps:  {"2.5 Gbps", 2500, 1},
	Rate5Gbps:    {"5 Gbps", 5000, 2},
	Rate10Gbps:   {"10 Gbps", 10000, 4},
	Rate20Gbps:   {"20 Gbps", 20000, 8},
	Rate30Gbps:   {"30 Gbps", 30000, 12},
	Rate40Gbps:   {"40 Gbps", 40000, 16},
	Rate60Gbps:   {"60 Gbps", 60000, 24},
	Rate80Gbps:   {"80 Gbps", 80000, 32},
	Rate120Gbps:  {"120 Gbps", 120000, 48},
	Rate14Gbps:   {"14 Gbps", 14062, 0},
	Rate56Gbps:   {"56 Gbps", 56250, 0},
	Rate112Gbps:  {"112 Gbps", 112500, 0},
	Rate168Gbps:  {"168 Gbps", 168750, 0},
	Rate25Gbps:   {"25 Gbps", 25781, 0},
	Rate100Gbps:  {"100 Gbps", 103125, 0},
	Rate200Gbps:  {"200 Gbps", 206250, 0},
	Rate300Gbps:  {"300 Gbps", 309375, 0},
	Rate28Gbps:   {"28 Gbps", 28125, 11},
	Rate50Gbps:   {"50 Gbps", 53125, 20},
	Rate400Gbps:  {"400 Gbps", 425000, 160},
	Rate600Gbps:  {"600 Gbps", 637500, 240},
	Rate800Gbps:  {"800 Gbps", 850000, 320},
	Rate1200Gbps: {"1200 Gbps", 1275000, 480},
}

// String prints the nominal rate, "100 Gbps".
func (r Rate) String() string {
	switch {
	case r == RateMax:
		return "max"
	case int(r) < len(rates) && rates[r].mbps != 0:
		return rates[r].name
	}
	return unknown("Rate", int(r))
}

// Mbps gives the rate in Mbit/s as ibv_rate_to_mbps does; -1 for RateMax and
// unknown codes.
func (r Rate) Mbps() int {
	if int(r) >= len(rates) || rates[r].mbps == 0 {
		return -1
	}
	return rates[r].mbps
}

// Mult gives the rate as a multiple of 2.5 Gbit/s as ibv_rate_to_mult does; -1
// for RateMax, unknown codes, and rates for which the C interface has none.
func (r Rate) Mult() int {
	if int(r) >= len(rates) || rates[r].mult == 0 {
		return -1
	}
	return rates[r].mult
}

// RateFromMbps gives the code of a rate in Mbit/s as mbps_to_ibv_rate does:
// only the exact numbers of Rate.Mbps are known, others give RateMax.
func RateFromMbps(mbps int) Rate {
	for r := range rates {
		if mbps > 0 && rates[r].mbps == mbps {
			return Rate(r)
		}
	}
	return RateMax
}

// RateFromMult gives the code of a multiple of 2.5 Gbit/s as mult_to_ibv_rate
// does; RateMax when there is none.
func RateFromMult(mult int) Rate {
	for r := range rates {
		if mult > 0 && rates[r].mult == mult {
			return Rate(r)
		}
	}
	return RateMax
}
