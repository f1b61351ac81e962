package address

import "testing"

func TestParse(t *testing.T) {
	for raw, host := range map[string]string{
		"redis://user:secret@host:6379/0":   "host:6379",
		"redis://user:se%2Fcret@host/0":     "host",
		"redis://user:se@cret@host/0":       "host",
		"redis://host?prefix=shop:":         "host",
		"memory:":                           "",
		"memory:me@home":                    "", // it has no host
		"redis://user:se/cret@host:6379/0":  "malformed",
		"redis://user:1/cret@host:6379/0":   "malformed",
		"redis://user:1?cret@host:6379/0":   "malformed",
		"redis://user:1#cret@host:6379/0":   "malformed",
		"redis://user:1%2@host:6379/0":      "malformed",
		"redis://user:secret@host:port/0":   "malformed",
		"redis://host?password=secret@home": "malformed", // it might be a part of one
	} {
		u, err := Parse(raw)
		switch {
		case err != nil && (host != "malformed" || err.Error() != "malformed URL"):
			t.Errorf("%s: %v", raw, err)
		case err == nil && u.Host != host:
			t.Errorf("%s: host %q, want %q", raw, u.Host, host)
		}
	}
}

func TestMisplaced(t *testing.T) {
	for raw, want := range map[string]bool{
		"redis:///user:secret@host/0": true, "redis:////secret@host": true, "redis://user:secret@host/0": false, "redis:///0": false,
	} {
		if u, err := Parse(raw); err != nil || Misplaced(u) != want {
			t.Errorf("%s: %v, want %v", raw, err, want)
		}
	}
}
