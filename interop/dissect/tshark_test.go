package dissect

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// requireEnv set makes a missing tshark a failure: make and CI set it.
const requireEnv = "VERBENA_REQUIRE_TSHARK"

// tshark runs it on a file, and returns for each packet the fields by name; a
// field that the packet does not have is missing.
func tshark(t *testing.T, file string, fields []string) []map[string]string {
	t.Helper()
	exe, err := exec.LookPath("tshark")
	if err != nil {
		const hint = "install it (Debian: apt-get install tshark)"
		if os.Getenv(requireEnv) != "" {
			t.Fatalf("tshark is not installed: %s, or leave these tests out: make test TSHARK=0", hint)
		}
		t.Skipf("tshark is not installed: captures are not held against Wireshark's dissector; %s", hint)
	}
	args := []string{
		"-r", file, "-T", "fields", "-E", "separator=/t", "-E", "occurrence=f", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE",
	}
	// What guesses at payload.
	for _, p := range []string{"smc", "smb_direct", "rpcordma", "nvme-rdma", "lnet", "iser", "infiniband.eoib", "infiniband_sdp", "fcoib"} {
		args = append(args, "--disable-protocol", p)
	}
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	cmd := exec.Command(exe, args...)
	// Nothing of the user's own settings.
	cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), "XDG_CONFIG_HOME="+t.TempDir(), "LC_ALL=C.UTF-8")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, errs.String())
	}
	var list []map[string]string
	for line := range strings.Lines(out.String()) {
		m := map[string]string{}
		for i, v := range strings.Split(strings.TrimSuffix(line, "\n"), "\t") {
			if v != "" {
				m[fields[i]] = v
			}
		}
		list = append(list, m)
	}
	return list
}

// number reads a value as tshark prints numbers and booleans.
func number(s string) (uint64, error) {
	switch s {
	case "True":
		return 1, nil
	case "False":
		return 0, nil
	}
	return strconv.ParseUint(s, 0, 64)
}

// expect is what a packet's fields must be: numbers, or text as tshark prints it.
// What is not in it must not be in the packet either.
type expect struct {
	num  map[string]uint64
	text map[string]string
}

func newExpect() expect { return expect{map[string]uint64{}, map[string]string{}} }

// compare holds what tshark says of a packet against what is expected.
func (e expect) compare(t *testing.T, what string, got map[string]string) {
	t.Helper()
	for name, text := range got {
		if want, ok := e.text[name]; ok {
			if text != want {
				t.Errorf("%s: tshark: %s is %s, want %s", what, name, text, want)
			}
			continue
		}
		want, ok := e.num[name]
		if !ok {
			t.Errorf("%s: tshark shows %s = %s, which is not there", what, name, text)
			continue
		}
		if n, err := number(text); err != nil || n != want {
			t.Errorf("%s: tshark: %s is %s, want %#x %v", what, name, text, want, err)
		}
	}
	for name := range e.num {
		if _, ok := got[name]; !ok {
			t.Errorf("%s: tshark does not show %s", what, name)
		}
	}
	for name := range e.text {
		if _, ok := got[name]; !ok {
			t.Errorf("%s: tshark does not show %s", what, name)
		}
	}
}

func keep(t *testing.T, name string) string {
	t.Helper()
	if dir := os.Getenv("VERBENA_KEEP"); dir != "" { // to look at with Wireshark
		return filepath.Join(dir, name)
	}
	return filepath.Join(t.TempDir(), name)
}
