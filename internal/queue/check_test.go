package queue

import (
	"errors"
	"math"
	"syscall"
	"testing"

	"github.com/verbena-rdma/verbena/ib"
	"github.com/verbena-rdma/verbena/verbs/driver"
)

const everyOp Ops = math.MaxUint64

// sges makes a list of elements with the given lengths.
func sges(lengths ...uint32) (l []driver.SGE) {
	for _, n := range lengths {
		l = append(l, driver.SGE{Length: n})
	}
	return l
}

// The table of ibv_post_send(3), and what the device offers of it.
func TestCheckOpcodes(t *testing.T) {
	ok, no, not := error(nil), error(syscall.EINVAL), error(syscall.EOPNOTSUPP)
	for _, c := range []struct {
		op         ib.WROpcode
		rc, uc, ud error
	}{
		{ib.WRSend, ok, ok, ok},
		{ib.WRSendWithImm, ok, ok, ok},
		{ib.WRSendWithInv, ok, no, no},
		{ib.WRRDMAWrite, ok, ok, no},
		{ib.WRRDMAWriteWithImm, ok, ok, no},
		{ib.WRRDMARead, ok, no, no},
		{ib.WRAtomicCmpAndSwp, ok, no, no},
		{ib.WRAtomicFetchAndAdd, ok, no, no},
		{ib.WRLocalInv, ok, ok, no},
		{ib.WRBindMW, ok, ok, no},
		{ib.WRRegMR, ok, ok, no},
		{ib.WRRegMRIntegrity, not, not, no},
		{ib.WRReadWithInv, not, no, no},
		{ib.WRFlush, not, no, no},
		{ib.WRAtomicWrite, not, no, no},
		{ib.WRTSO, no, no, not},
		{ib.WRDriver1, not, not, not},
		{12, no, no, no},
		{13, no, no, no},
		{16, no, no, no},
		{63, no, no, no},
		{64, no, no, no},
		{99, no, no, no},
		{255, no, no, no},
	} {
		for _, q := range []struct {
			typ  ib.QPType
			want error
		}{{ib.RC, c.rc}, {ib.UC, c.uc}, {ib.UD, c.ud}, {ib.RawPacket, no}, {0, no}, {77, no}} {
			wr := driver.SendWR{Opcode: c.op, AH: &fakeAH{}, SGList: sges(8), Bind: &driver.BindInfo{}}
			err := Check(&wr, q.typ, &Limits{MaxSGE: 1, Ops: OpsBase})
			if !errors.Is(err, q.want) {
				t.Errorf("opcode %d on type %d: %v, want %v", c.op, q.typ, err, q.want)
			}
			var we *WRError
			if err != nil && (!errors.As(err, &we) || we.Field != "Opcode" || we.Error() == "") {
				t.Errorf("opcode %d on type %d: %#v", c.op, q.typ, err)
			}
			// What is not offered can be.
			if q.want == not {
				if c.op == ib.WRFlush {
					wr.SGList, wr.FlushType = nil, ib.FlushGlobal
				}
				if err := Check(&wr, q.typ, &Limits{MaxSGE: 1, Ops: OpsBase | OpSet(c.op)}); err != nil {
					t.Errorf("opcode %d on type %d, offered: %v", c.op, q.typ, err)
				}
			}
		}
	}
}

func TestCheckFields(t *testing.T) {
	ah := &fakeAH{}
	for _, c := range []struct {
		name, field string // field "" = it is right
		typ         ib.QPType
		wr          driver.SendWR
	}{
		{"no data", "", ib.RC, driver.SendWR{Opcode: ib.WRSend}},
		{"most elements", "", ib.RC, driver.SendWR{Opcode: ib.WRSend, SGList: sges(1, 2, 3, 4)}},
		{"too many elements", "SGList", ib.RC, driver.SendWR{Opcode: ib.WRSend, SGList: sges(1, 2, 3, 4, 5)}},
		{"all flags", "", ib.RC, driver.SendWR{Opcode: ib.WRSend, Flags: ib.SendFence | ib.SendInline | ib.SendSignaled | ib.SendSolicited}},
		{"checksum", "Flags", ib.UD, driver.SendWR{Opcode: ib.WRSend, AH: ah, Flags: ib.SendIPCSum}},
		{"unknown flag", "Flags", ib.RC, driver.SendWR{Opcode: ib.WRSend, Flags: 1 << 5}},
		{"highest flag", "Flags", ib.RC, driver.SendWR{Opcode: ib.WRSend, Flags: 1<<31 | ib.SendIPCSum}},
		{"inline", "", ib.RC, driver.SendWR{Opcode: ib.WRSend, Flags: ib.SendInline, SGList: sges(32, 32)}},
		{"inline too long", "SGList", ib.RC, driver.SendWR{Opcode: ib.WRSend, Flags: ib.SendInline, SGList: sges(32, 33)}},
		{"inline data", "", ib.RC, driver.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, InlineData: make([]byte, 64)}},
		{"inline data too long", "InlineData", ib.RC, driver.SendWR{Opcode: ib.WRRDMAWrite, Flags: ib.SendInline, InlineData: make([]byte, 65)}},
		{"inline data without the flag", "InlineData", ib.RC, driver.SendWR{Opcode: ib.WRSend, InlineData: make([]byte, 1)}},
		{"inline SEND_WITH_INV", "", ib.RC, driver.SendWR{Opcode: ib.WRSendWithInv, Flags: ib.SendInline}},
		{"inline READ", "Flags", ib.RC, driver.SendWR{Opcode: ib.WRRDMARead, Flags: ib.SendInline}},
		{"inline atomic", "Flags", ib.RC, driver.SendWR{Opcode: ib.WRAtomicFetchAndAdd, Flags: ib.SendInline, SGList: sges(8)}},
		{"empty READ", "", ib.RC, driver.SendWR{Opcode: ib.WRRDMARead}},
		{"atomic", "", ib.RC, driver.SendWR{Opcode: ib.WRAtomicFetchAndAdd, SGList: sges(8)}},
		{"atomic in pieces", "", ib.RC, driver.SendWR{Opcode: ib.WRAtomicCmpAndSwp, SGList: sges(3, 0, 5)}},
		{"short atomic", "SGList", ib.RC, driver.SendWR{Opcode: ib.WRAtomicCmpAndSwp, SGList: sges(7)}},
		{"long atomic", "SGList", ib.RC, driver.SendWR{Opcode: ib.WRAtomicCmpAndSwp, SGList: sges(8, 1)}},
		{"atomic without memory", "SGList", ib.RC, driver.SendWR{Opcode: ib.WRAtomicFetchAndAdd}},
		{"datagram", "", ib.UD, driver.SendWR{Opcode: ib.WRSend, AH: ah, RemoteQPN: ib.QPNMax}},
		{"no address", "AH", ib.UD, driver.SendWR{Opcode: ib.WRSend}},
		{"long QPN", "RemoteQPN", ib.UD, driver.SendWR{Opcode: ib.WRSend, AH: ah, RemoteQPN: ib.QPNMax + 1}},
		{"RC needs no address", "", ib.RC, driver.SendWR{Opcode: ib.WRSend, RemoteQPN: ib.QPNMax + 1}},
		{"long datagram: at execution", "", ib.UD, driver.SendWR{Opcode: ib.WRSend, AH: ah, SGList: sges(1 << 20)}},
	} {
		err := Check(&c.wr, c.typ, &Limits{MaxSGE: 4, MaxInline: 64, Ops: OpsBase})
		var we *WRError
		switch {
		case c.field == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.field != "" && (!errors.As(err, &we) || we.Field != c.field || !errors.Is(err, syscall.EINVAL)):
			t.Errorf("%s: %v, want EINVAL of %s", c.name, err, c.field)
		}
	}
}

func TestCase56_OneMessageLimit(t *testing.T) {
	for _, c := range []struct {
		list []driver.SGE
		ok   bool
	}{
		{sges(1 << 30), true},
		{sges(1<<30 + 4), true},
		{sges(1<<31 - 1), true},
		{sges(1 << 31), true},
		{sges(1<<31 + 1), false},
		{sges(1<<31, 1), false},
		{sges(math.MaxUint32, math.MaxUint32, math.MaxUint32, 4), false}, // 2^32 wraps are not missed
	} {
		for _, op := range []ib.WROpcode{ib.WRSend, ib.WRRDMAWrite, ib.WRRDMARead} {
			err := Check(&driver.SendWR{Opcode: op, SGList: c.list}, ib.RC, &Limits{MaxSGE: 4, Ops: everyOp})
			if (err == nil) != c.ok || err != nil && !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%v: %v", c.list, err)
			}
		}
	}
}

func FuzzCheck(f *testing.F) {
	f.Add(uint8(0), uint32(0), uint8(2), 1, uint32(1), true)
	f.Add(uint8(99), uint32(math.MaxUint32), uint8(4), 9, uint32(math.MaxUint32), false)
	f.Fuzz(func(t *testing.T, op uint8, flags uint32, typ uint8, n int, length uint32, ah bool) {
		wr := driver.SendWR{Opcode: ib.WROpcode(op), Flags: ib.SendFlags(flags), RemoteQPN: ib.QPN(length)}
		for range n & 7 {
			wr.SGList = append(wr.SGList, driver.SGE{Length: length})
		}
		if ah {
			wr.AH = &fakeAH{}
		}
		err := Check(&wr, ib.QPType(typ), &Limits{MaxSGE: 4, MaxInline: 100, Ops: OpsBase})
		if err != nil && (!errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.EOPNOTSUPP) || err.Error() == "") {
			t.Fatal(err)
		}
		if err == nil && (uint64(n&7)*uint64(length) > ib.MaxMsgSize || n&7 > 4) {
			t.Fatal("too long and taken")
		}
	})
}
