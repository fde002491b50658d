package mad

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

// field is where a field stands: from bit on (0 is the most significant bit of byte 0), width bits, in the order of the wire.
type field struct {
	name       string
	bit, width int
}

// at is a field of whole bytes; in is one within a byte, [hi:lo] with 7 the most significant bit.
func at(name string, off, n int) field      { return field{name, off * 8, n * 8} }
func in(name string, off, hi, lo int) field { return field{name, off*8 + 7 - hi, hi - lo + 1} }
func join(lists ...[]field) (all []field)   { return append(all, concat(lists)...) }
func concat(lists [][]field) (all []field) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

func ids() []field              { return []field{at("LocalCommID", 0, 4), at("RemoteCommID", 4, 4)} }
func tail(off, n int) []field   { return []field{at("PrivateData", off, n)} }
func fields(f ...field) []field { return f }

// The tables of the standard (IBA 12.6, 12.8, 12.11, 13.4.3), written down from it and not from the code.
var tables = []struct {
	view   any
	n      int
	fields []field
}{
	{Header(nil), 24, fields(
		at("BaseVersion", 0, 1), at("Class", 1, 1), at("ClassVersion", 2, 1), at("Method", 3, 1), at("Status", 4, 2),
		at("ClassSpecific", 6, 2), at("TID", 8, 8), at("AttrID", 16, 2), at("AttrMod", 20, 4),
	)},
	{REQ(nil), DataLen, join(fields(
		at("LocalCommID", 0, 4), at("VendorID", 5, 3), at("ServiceID", 8, 8), at("LocalCAGUID", 16, 8), at("LocalQKey", 28, 4),
		at("LocalQPN", 32, 3), at("ResponderResources", 35, 1), at("LocalEECN", 36, 3), at("InitiatorDepth", 39, 1),
		at("RemoteEECN", 40, 3), in("RemoteCMResponseTimeout", 43, 7, 3), in("TransportService", 43, 2, 1), in("FlowControl", 43, 0, 0),
		at("StartingPSN", 44, 3), in("LocalCMResponseTimeout", 47, 7, 3), in("RetryCount", 47, 2, 0), at("PKey", 48, 2),
		in("PathMTU", 50, 7, 4), in("RDCExists", 50, 3, 3), in("RNRRetryCount", 50, 2, 0), in("MaxCMRetries", 51, 7, 4),
		in("SRQ", 51, 3, 3), in("ExtendedTransport", 51, 2, 0),
		at("PrimaryPath", 52, 44), at("AlternatePath", 96, 44),
	), tail(140, 92))},
	{Path(nil), 44, fields(
		at("LocalLID", 0, 2), at("RemoteLID", 2, 2), at("LocalGID", 4, 16), at("RemoteGID", 20, 16), field{"FlowLabel", 36 * 8, 20},
		in("PacketRate", 39, 5, 0), at("TrafficClass", 40, 1), at("HopLimit", 41, 1), in("SL", 42, 7, 4), in("SubnetLocal", 42, 3, 3),
		in("LocalACKTimeout", 43, 7, 3), in("SAPSupported", 43, 2, 2),
	)},
	{REP(nil), DataLen, join(ids(), fields(
		at("LocalQKey", 8, 4), at("LocalQPN", 12, 3), at("LocalEECN", 16, 3), at("StartingPSN", 20, 3), at("ResponderResources", 24, 1),
		at("InitiatorDepth", 25, 1), in("TargetACKDelay", 26, 7, 3), in("FailoverAccepted", 26, 2, 1), in("FlowControl", 26, 0, 0),
		in("RNRRetryCount", 27, 7, 5), in("SRQ", 27, 4, 4), at("LocalCAGUID", 28, 8),
	), tail(36, 196))},
	{RTU(nil), DataLen, join(ids(), tail(8, 224))},
	{MRA(nil), DataLen, join(ids(), fields(in("MessageMRAed", 8, 7, 6), in("ServiceTimeout", 9, 7, 3)), tail(10, 222))},
	{REJ(nil), DataLen, join(ids(), fields(in("MessageRejected", 8, 7, 6), in("ARILength", 9, 7, 1), at("Reason", 10, 2), at("ARI", 12, 72)), tail(84, 148))},
	{DREQ(nil), DataLen, join(ids(), fields(at("RemoteQPN", 8, 3)), tail(12, 220))},
	{DREP(nil), DataLen, join(ids(), tail(8, 224))},
	{LAP(nil), DataLen, join(ids(), fields(
		at("RemoteQPN", 12, 3), in("RemoteCMResponseTimeout", 15, 7, 3), at("LocalLID", 20, 2), at("RemoteLID", 22, 2),
		at("LocalGID", 24, 16), at("RemoteGID", 40, 16), field{"FlowLabel", 56 * 8, 20}, at("TrafficClass", 59, 1), at("HopLimit", 60, 1),
		in("PacketRate", 61, 5, 0), in("SL", 62, 7, 4), in("SubnetLocal", 62, 3, 3), in("LocalACKTimeout", 63, 7, 3),
	), tail(64, 168))},
	{APR(nil), DataLen, join(ids(), fields(at("InfoLength", 8, 1), at("Status", 9, 1), at("Info", 12, 72)), tail(84, 148))},
	{SIDRREQ(nil), DataLen, join(fields(at("RequestID", 0, 4), at("PKey", 4, 2), at("ServiceID", 8, 8)), tail(16, 216))},
	{SIDRREP(nil), DataLen, join(fields(
		at("RequestID", 0, 4), at("Status", 4, 1), at("InfoLength", 5, 1), at("QPN", 8, 3), at("ServiceID", 12, 8), at("QKey", 20, 4), at("Info", 24, 72),
	), tail(96, 136))},
}

// scattered are fields in several pieces; they have tests of their own.
var scattered = map[string]bool{"REP.VendorID": true, "SIDRREP.VendorID": true}

// Every field stands where the standard has it: it is read from there, and writing it changes nothing else.
func TestFields(t *testing.T) {
	for _, tab := range tables {
		typ := reflect.TypeOf(tab.view)
		known := map[string]bool{}
		for _, f := range tab.fields {
			known[f.name], known["Set"+f.name] = true, true
			get, ok := typ.MethodByName(f.name)
			if !ok {
				t.Errorf("%s.%s: no such method", typ.Name(), f.name)
				continue
			}
			for _, fill := range []byte{0x00, 0xFF} {
				// The pattern has both ends set, so that a shift by one is seen.
				for _, pattern := range patterns(f.width) {
					b := bytes.Repeat([]byte{fill}, tab.n)
					putBits(b, f, pattern)
					got := get.Func.Call([]reflect.Value{reflect.ValueOf(b).Convert(typ)})[0]
					if g := asBits(got, f.width); !bytes.Equal(g, pattern) {
						t.Errorf("%s.%s of %x: %x, want %x", typ.Name(), f.name, b, g, pattern)
					}
					set, ok := typ.MethodByName("Set" + f.name)
					if !ok {
						if got.Kind() != reflect.Slice {
							t.Errorf("%s: no Set%s", typ.Name(), f.name)
						}
						continue
					}
					c := bytes.Repeat([]byte{fill}, tab.n)
					set.Func.Call([]reflect.Value{reflect.ValueOf(c).Convert(typ), got})
					if !bytes.Equal(b, c) {
						t.Errorf("%s.Set%s\n got %x\nwant %x", typ.Name(), f.name, c, b)
					}
				}
			}
		}
		for i := range typ.NumMethod() {
			name := typ.Method(i).Name
			if !known[name] && !strings.HasPrefix(name, "Put") && !scattered[typ.Name()+"."+strings.TrimPrefix(name, "Set")] {
				t.Errorf("%s.%s is in no table", typ.Name(), name)
			}
		}
	}
}

// patterns are values of a field as bits, one bit a byte.
func patterns(width int) [][]byte {
	ends := make([]byte, width)
	ends[0], ends[width-1] = 1, 1
	other := make([]byte, width)
	for i := range other {
		other[i] = byte(i*i*7>>2) & 1
	}
	return [][]byte{make([]byte, width), bytes.Repeat([]byte{1}, width), ends, other}
}

func putBits(b []byte, f field, v []byte) {
	for i, x := range v {
		at := f.bit + i
		b[at/8] = b[at/8]&^(0x80>>(at%8)) | x<<(7-at%8)
	}
}

// asBits is what a getter returned, one bit a byte.
func asBits(v reflect.Value, width int) []byte {
	out := make([]byte, width)
	switch v.Kind() {
	case reflect.Bool:
		if v.Bool() {
			out[0] = 1
		}
	case reflect.Slice, reflect.Array:
		for i := range out {
			if i/8 < v.Len() {
				out[i] = byte(v.Index(i/8).Uint()) >> (7 - i%8) & 1
			}
		}
	default:
		for i := range out {
			out[i] = byte(v.Uint()>>(width-1-i)) & 1
		}
	}
	return out
}

// The vendor ids of REP and SIDR_REP are cut into pieces.
func TestScatteredVendorID(t *testing.T) {
	rep, want := make(REP, DataLen), make([]byte, DataLen)
	rep.SetVendorID(0xFFABCDEF)
	want[15], want[19], want[23] = 0xAB, 0xCD, 0xEF
	if !bytes.Equal(rep, want) || rep.VendorID() != 0xABCDEF {
		t.Errorf("REP: %x, %x", rep.VendorID(), []byte(rep))
	}
	sidr, want := make(SIDRREP, DataLen), make([]byte, DataLen)
	sidr.SetVendorID(0xFFABCDEF)
	want[6], want[7], want[11] = 0xAB, 0xCD, 0xEF
	if !bytes.Equal(sidr, want) || sidr.VendorID() != 0xABCDEF {
		t.Errorf("SIDR_REP: %x, %x", sidr.VendorID(), []byte(sidr))
	}
}

// readAll calls every getter of a view.
func readAll(view any, b []byte) {
	typ := reflect.TypeOf(view)
	v := reflect.ValueOf(b).Convert(typ)
	for i := range typ.NumMethod() {
		if m := typ.Method(i); m.Type.NumIn() == 1 {
			m.Func.Call([]reflect.Value{v})
		}
	}
}
