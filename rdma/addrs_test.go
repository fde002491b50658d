package rdma

import (
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

func TestParseAddrs(t *testing.T) {
	a := netip.MustParseAddr
	for s, want := range map[string][]table{
		"":               nil,
		" , ":            nil,
		"lo=127.0.0.2":   {{"lo", []netip.Addr{a("127.0.0.2")}}},
		"lo=127.0.0.2, ": {{"lo", []netip.Addr{a("127.0.0.2")}}},
		"lo=127.0.0.2,eth0=10.0.0.1+10.0.0.2": {
			{"lo", []netip.Addr{a("127.0.0.2")}}, {"eth0", []netip.Addr{a("10.0.0.1"), a("10.0.0.2")}},
		},
		" eth0 = fe80::1%eth0 + 2001:db8::1": {{"eth0", []netip.Addr{a("fe80::1%eth0"), a("2001:db8::1")}}},
		"Local Area Connection* 2=10.1.1.1":  {{"Local Area Connection* 2", []netip.Addr{a("10.1.1.1")}}},
	} {
		got, err := parseAddrs(s)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %v, %v", s, got, err)
		}
	}
	for s, say := range map[string]string{
		"lo":                              "want interface=address",
		"=127.0.0.1":                      "want interface=address",
		"lo=":                             "not an IP address",
		"lo=127.0.0.1+":                   "not an IP address",
		"lo=localhost":                    `"localhost" is not an IP address`,
		"lo=127.0.0.1/8":                  "not an IP address",
		"lo=0.0.0.0":                      "unicast",
		"lo=::":                           "unicast",
		"lo=224.0.0.1":                    "unicast",
		"lo=ff02::1":                      "unicast",
		"lo=255.255.255.255":              "unicast",
		"lo=127.0.0.1+127.0.0.1":          "twice",
		"lo=127.0.0.1+::ffff:127.0.0.1":   "twice",
		"lo=127.0.0.1,lo=127.0.0.2":       "twice",
		"lo=127.0.0.1;eth0=10.0.0.1":      "not an IP address",
		"eth0=10.0.0.1,lo=127.0.0.1,bad":  `"bad"`,
		"eth0=10.0.0.1,lo=127.0.0.1 10.1": "not an IP address",
	} {
		_, err := parseAddrs(s)
		var e *AddrsError
		if !errors.As(err, &e) || !errors.Is(err, syscall.EINVAL) || e.Source != AddrsEnv || !strings.Contains(err.Error(), say) {
			t.Errorf("%q: %v, want it to say %s", s, err, say)
		}
	}
}

func FuzzParseAddrs(f *testing.F) {
	for _, s := range []string{"", "lo=127.0.0.2,eth0=10.0.0.1+10.0.0.2", " eth0 = fe80::1%eth0 + 2001:db8::1", "lo=127.0.0.1+::ffff:127.0.0.1", "=", "lo=,"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		list, err := parseAddrs(s)
		if err != nil {
			if e := (*AddrsError)(nil); !errors.As(err, &e) || !errors.Is(err, syscall.EINVAL) {
				t.Fatalf("%q: %v", s, err)
			}
			return
		}
		var parts []string
		for _, x := range list {
			var addrs []string
			for _, a := range x.addrs {
				if a.IsMulticast() || a.IsUnspecified() {
					t.Errorf("%q: %v", s, a)
				}
				addrs = append(addrs, a.String())
			}
			parts = append(parts, x.netdev+"="+strings.Join(addrs, "+"))
		}
		if again, err := parseAddrs(strings.Join(parts, ",")); err != nil || !reflect.DeepEqual(again, list) {
			t.Errorf("%q: %v, then %v, %v", s, list, again, err)
		}
	})
}
