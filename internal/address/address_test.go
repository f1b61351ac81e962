package address

import (
	"fmt"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	for raw, host := range map[string]string{
		"redis://user:secret@host:6379/0":   "host:6379",
		"redis://user:se%2Fcret@host/0":     "host",
		"redis://user:se@cret@host/0":       "host",
		"redis://host?prefix=shop:":         "host",
		"amqp://user:secret@host/shop%40eu": "host",
		"amqp://user:1/cret%40@host/":       "malformed",
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

func TestSplit(t *testing.T) {
	for raw, want := range map[string]string{
		"redis://user:secret@host/0":                   "redis://user:secret@host/0, , 1m0s",
		"redis:///0":                                   "redis:///0, , 1m0s",
		"redis://host/0?prefix=a:&db=1":                "redis://host/0?db=1, a:, 1m0s",
		"redis://host/0?hold=1h30m":                    "redis://host/0, , 1h30m0s",
		"redis://host/0?hold=":                         "redis://host/0, , 1m0s",
		"redis://user:secret@host/0?prefix=a:&hold=90": "hold is not a duration such as 1h",
		"redis:///user:secret@host/0":                  "the URL has three slashes after the scheme; it must have two",
		"redis:////secret@host":                        "the URL has three slashes after the scheme; it must have two",
	} {
		u, err := Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		prefix, hold := "", time.Minute
		rest, err := Split(u, map[string]any{"prefix": &prefix, "hold": &hold})
		got := fmt.Sprintf("%s, %s, %v", rest, prefix, hold)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", raw, got, want)
		}
	}
}
