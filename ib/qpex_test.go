package ib

import "testing"

func TestQPExNames(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{SRQBasic.String(), "BASIC"},
		{SRQXRC.String(), "XRC"},
		{SRQTM.Name(), "IBV_SRQT_TM"},
		{SRQXRC.Name(), "IBV_SRQT_XRC"},
		{QPCreateFlags(0).String(), "0"},
		{(QPCreateBlockSelfMcastLB | QPCreateSourceQPN).String(), "BLOCK_SELF_MCAST_LB|SOURCE_QPN"},
		{QPCreateFlags(1 << 30).String(), "0x40000000"},
		{(QPCreateScatterFCS | QPCreateCVLANStripping | QPCreatePCIWriteEndPadding).String(), "SCATTER_FCS|CVLAN_STRIPPING|PCI_WRITE_END_PADDING"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	// The numbers are those of the C headers.
	for _, c := range []struct{ got, want uint32 }{
		{uint32(SRQXRC), 1},
		{uint32(SRQTM), 2},
		{uint32(QPCreateBlockSelfMcastLB), 1 << 1},
		{uint32(QPCreateScatterFCS), 1 << 8},
		{uint32(QPCreateCVLANStripping), 1 << 9},
		{uint32(QPCreateSourceQPN), 1 << 10},
		{uint32(QPCreatePCIWriteEndPadding), 1 << 11},
		{DeviceCapXRC, 1 << 20},
	} {
		if c.got != c.want {
			t.Errorf("%#x, want %#x", c.got, c.want)
		}
	}
}
