package roce

import (
	"strings"
	"testing"
)

// TestOpcodeTable compares the table with the standard's, written down independently: per opcode its name, the extension
// headers in wire order, and flags by letter.
func TestOpcodeTable(t *testing.T) {
	// Letters: q request, r response, F first, M middle, L last, O only, p payload, i immediate, v invalidate, s SEND, w WRITE,
	// d READ, a atomic, k acknowledge, c consumes a receive request, x extended.
	const rc = `
00 SEND_FIRST                      -             qFpsc
01 SEND_MIDDLE                     -             qMps
02 SEND_LAST                       -             qLps
03 SEND_LAST_WITH_IMMEDIATE        imm           qLpis
04 SEND_ONLY                       -             qOpsc
05 SEND_ONLY_WITH_IMMEDIATE        imm           qOpisc
06 RDMA_WRITE_FIRST                reth          qFpw
07 RDMA_WRITE_MIDDLE               -             qMpw
08 RDMA_WRITE_LAST                 -             qLpw
09 RDMA_WRITE_LAST_WITH_IMMEDIATE  imm           qLpiwc
0A RDMA_WRITE_ONLY                 reth          qOpw
0B RDMA_WRITE_ONLY_WITH_IMMEDIATE  reth,imm      qOpiwc
0C RDMA_READ_REQUEST               reth          qOd
0D RDMA_READ_RESPONSE_FIRST        aeth          rFpd
0E RDMA_READ_RESPONSE_MIDDLE       -             rMpd
0F RDMA_READ_RESPONSE_LAST         aeth          rLpd
10 RDMA_READ_RESPONSE_ONLY         aeth          rOpd
11 ACKNOWLEDGE                     aeth          rOk
12 ATOMIC_ACKNOWLEDGE              aeth,atomack  rOak
13 COMPARE_SWAP                    atomic        qOa
14 FETCH_ADD                       atomic        qOa
16 SEND_LAST_WITH_INVALIDATE       ieth          qLpsv
17 SEND_ONLY_WITH_INVALIDATE       ieth          qOpsvc
1C FLUSH                           feth,reth     qOx
1D ATOMIC_WRITE                    reth          qOpx`
	lens := map[string]int{"reth": 16, "aeth": 4, "deth": 8, "atomic": 28, "atomack": 8, "imm": 4, "ieth": 4, "xrceth": 4, "feth": 4}
	type row struct {
		name  string
		hdrs  []string
		flags string
	}
	want := map[Opcode]row{}
	for _, line := range strings.Split(strings.TrimSpace(rc), "\n") {
		f := strings.Fields(line)
		op := unhex(t, f[0])[0]
		var hdrs []string
		if f[2] != "-" {
			hdrs = strings.Split(f[2], ",")
		}
		want[Opcode(op)] = row{"RC_" + f[1], hdrs, f[3]}
		if op <= 0x0B {
			want[Opcode(op+0x20)] = row{"UC_" + f[1], hdrs, f[3]}
		}
		if op == 4 || op == 5 {
			want[Opcode(op+0x60)] = row{"UD_" + f[1], append([]string{"deth"}, hdrs...), f[3]}
		}
		if strings.Contains(f[3], "q") {
			hdrs = append([]string{"xrceth"}, hdrs...)
		}
		want[Opcode(op+0xA0)] = row{"XRC_" + f[1], hdrs, f[3]}
	}
	letters := map[rune]OpFlags{
		'q': FlagRequest, 'r': FlagResponse, 'F': FlagFirst, 'M': FlagMiddle, 'L': FlagLast, 'O': FlagOnly, 'p': FlagPayload,
		'i': FlagImm, 'v': FlagInv, 's': FlagSend, 'w': FlagWrite, 'd': FlagRead, 'a': FlagAtomic, 'k': FlagAck,
		'c': FlagConsumesRecv, 'x': FlagExtended,
	}
	longest := 0
	for i := range 256 {
		op := Opcode(i)
		inf := op.Info()
		if op == OpCNP {
			if inf.Name != "CNP" || !inf.Valid || inf.HdrLen != 28 || inf.Flags != 0 || op.Transport() != TransportCNP {
				t.Errorf("CNP: %+v", inf)
			}
			continue
		}
		w, valid := want[op]
		if inf.Valid != valid {
			t.Errorf("%#x %v: valid %v, want %v", i, op, inf.Valid, valid)
			continue
		}
		at := BTHLen
		off := map[string]uint8{}
		for _, h := range w.hdrs {
			off[h] = uint8(at)
			at += lens[h]
		}
		var flags OpFlags
		for _, c := range w.flags {
			flags |= letters[c]
		}
		if !valid {
			if op.Transport() != TransportRD {
				flags = 0
			} else {
				flags = inf.Flags
			}
		} else if inf.Name != w.name || op.String() != w.name {
			t.Errorf("%#x is called %q, want %q", i, inf.Name, w.name)
		}
		exp := OpInfo{
			Name: inf.Name, Valid: valid, HdrLen: at, Flags: flags, RETH: off["reth"], AETH: off["aeth"], DETH: off["deth"],
			AtomicETH: off["atomic"], AtomicAck: off["atomack"], Imm: off["imm"], IETH: off["ieth"], XRCETH: off["xrceth"], FETH: off["feth"],
		}
		if *inf != exp {
			t.Errorf("%#x %v:\n got %+v\nwant %+v", i, op, *inf, exp)
		}
		if MakeOpcode(op.Transport(), op.Operation()) != op {
			t.Errorf("%#x: transport and operation do not join again", i)
		}
		longest = max(longest, inf.HdrLen)
	}
	if longest != MaxHeaderLen {
		t.Errorf("longest header stack is %d, MaxHeaderLen %d", longest, MaxHeaderLen)
	}
}

func TestOpcodeNames(t *testing.T) {
	for op, want := range map[Opcode]string{
		OpRCReadRespFirst: "RC_RDMA_READ_RESPONSE_FIRST", OpUCWriteOnlyImm: "UC_RDMA_WRITE_ONLY_WITH_IMMEDIATE",
		OpUDSendOnlyImm: "UD_SEND_ONLY_WITH_IMMEDIATE", OpXRCAtomicWrite: "XRC_ATOMIC_WRITE", OpCNP: "CNP",
		0x55: "RD_RESYNC", 0x15: "Opcode(0x15)", 0x60: "Opcode(0x60)", 0xFF: "Opcode(0xFF)", 0x80: "Opcode(0x80)",
	} {
		if op.String() != want {
			t.Errorf("%#x is %q, want %q", byte(op), op, want)
		}
	}
	if OpFlush.String() != "FLUSH" || Operation(0x1F).String() != "Operation(0x1F)" {
		t.Errorf("operations: %q %q", OpFlush, Operation(0x1F))
	}
	if TransportXRC.String() != "XRC" || Transport(0xE0).String() != "Transport(0xE0)" {
		t.Errorf("transports: %q %q", TransportXRC, Transport(0xE0))
	}
	for op, b := range map[Opcode]byte{
		OpRCSendFirst: 0x00, OpRCAcknowledge: 0x11, OpRCAtomicWrite: 0x1D, OpUCSendFirst: 0x20, OpUCWriteOnlyImm: 0x2B,
		OpUDSendOnly: 0x64, OpXRCSendFirst: 0xA0, OpXRCFlush: 0xBC, OpXRCSendOnlyInv: 0xB7,
	} {
		if byte(op) != b {
			t.Errorf("%v is %#x, want %#x", op, byte(op), b)
		}
	}
	if !FlagStart.Any(FlagOnly) || FlagStart.Any(FlagLast) || !FlagEnd.Any(FlagLast|FlagMiddle) {
		t.Error("OpFlags.Any")
	}
	names := map[string]bool{}
	for i := range 256 {
		if n := Opcode(i).Info().Name; n != "" && names[n] {
			t.Errorf("name %q twice", n)
		} else {
			names[n] = true
		}
	}
	if !names["RD_SEND_FIRST"] {
		t.Error("reliable datagram opcodes have no names")
	}
}
