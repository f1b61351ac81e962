package cli

import (
	"encoding/json"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

// The name of an entity comes from a message. None moves the cursor of a terminal, hides a part of itself or begins a line, in
// text or in JSON. A reader of the JSON gets the name as it is.
func TestNamesReachNoTerminal(t *testing.T) {
	for _, name := range []string{
		"\x1b[2J\x1b[H", "\x1b]0;title\a", "\u009b2J", "\u009d0;title\u009c", "a\x7f\b\b", "a\nshop-2  9/9", "a\r", "\u202egnp.exe", "\u2066a", "\u2028", "\xff\x9b",
		"a\x00b", "\U000e0041", "\ufeff", strings.Repeat("\u009b", 10_000),
	} {
		synctest.Test(t, func(t *testing.T) {
			b, url := inMemory(t, drip.Options{Size: 1, RefreshRate: 1, History: true})
			buckettest.Admit(t, b, name, drip.Request{})
			buckettest.Admit(t, b, name, drip.Request{})
			for _, args := range [][]string{
				{"inspect", url, name}, {"inspect", "--json", url, name}, {"top", url}, {"top", "--json", url},
				{"pause", url, name, "1m"}, {"pause", "--json", url, name, "1m"}, {"resume", url, name}, {"pin", "--limit", "5/1s", url, name}, {"unpin", url, name},
				{"reset", url, name}, {"reset", "--yes", url, name}, {"reset", "--yes", "--json", url, name}, {"nothing", name}, {"help", name},
				{"inspect", url, "history:" + name}, {"inspect", name, name}, {"pause", url, "shop", name}, {"inspect", "--limits", "{" + name, url, "shop"},
			} {
				o := try(t, args...)
				allShown(t, args, o.out+o.err)
				if !utf8.ValidString(o.out + o.err) {
					t.Errorf("%.60q: invalid UTF-8 in %.300q", args, o.out+o.err)
				}
				if args[1] == "--json" && args[0] == "inspect" {
					var got struct{ Entity string }
					ok(t, json.Unmarshal([]byte(o.out), &got))
					if got.Entity != strings.ToValidUTF8(name, "\ufffd") && utf8.ValidString(name) {
						t.Errorf("the JSON has %q, want %q", got.Entity, name)
					}
				}
			}
		})
	}
}

// A blank at the end of a name is visible: it is another entity.
func TestBlanksAreVisible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, url := inMemory(t, drip.Options{Size: 1, RefreshRate: 1})
		buckettest.Admit(t, b, "shop 1 ", drip.Request{})
		for _, args := range [][]string{{"top", url}, {"inspect", url, "shop 1 "}, {"pause", url, "shop 1 ", "1m"}} {
			if got := must(t, args...); !strings.Contains(got, `"shop 1 "`) {
				t.Errorf("%q:\n%s", args, got)
			}
		}
	})
}

// Nor does a scenario that others have written.
func TestScenariosReachNoTerminal(t *testing.T) {
	file := write(t, "scenario.json", `{"name": "a\u001b[2Jb\u009b2J", "about": "\u202e and\u0000more", "limits": {"size": 2, "rate": 2, "unit": "\u001b[1m"},
		"costs": {"\u001b[1m": 1}, "providers": [{"kind": "sliding-window", "size": 9, "interval": "1s"}], "arrivals": [{"kind": "burst", "count": 3}]}`)
	for _, args := range [][]string{{"simulate", file}, {"simulate", "--json", file}} {
		allShown(t, args, must(t, args...))
	}
}

// Nor do limits that others have written.
func TestLimitsReachNoTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const unit, shared = "\x1b[1m", "\u009b2J"
		b, url := inMemory(t, drip.Options{Size: 9, RefreshRate: 9, Unit: unit, Shared: map[string]drip.Limit{shared: {Size: 1, RefreshRate: 1}}})
		time.Sleep(time.Second)
		for range 3 {
			buckettest.Admit(t, b, "shop", drip.Request{Costs: drip.Costs{unit: 1}})
		}
		file := write(t, "limits.json", `{"size": 9, "rate": 9, "unit": "\u001b[1m", "shared": {"\u009b2J": {"size": 1, "rate": 1}}}`)
		for _, args := range [][]string{{"inspect", url, "shop"}, {"inspect", "--json", url, "shop"}, {"top", url}, {"top", "--json", url}} {
			got := must(t, append(args, "--limits", file)...)
			allShown(t, args, got)
			if !strings.Contains(got, "1b[1m") && !strings.Contains(got, "9b2J") {
				t.Errorf("%q tells neither the unit nor the shared limit:\n%s", args, got)
			}
		}
	})
}

// allShown fails the test if a terminal acts on a character of the output, or does not show it.
func allShown(t *testing.T, args []string, output string) {
	t.Helper()
	hidden := func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }
	if i := strings.IndexFunc(output, hidden); i >= 0 {
		t.Errorf("%.60q: there is %.4q in\n%.300q", args, output[i:], output)
	}
}

// Nor does the error of a server that means harm, nor the name of a file.
func TestErrorsReachNoTerminal(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	ok(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for requests := make([]byte, 1<<10); ; {
					if _, err := c.Read(requests); err != nil {
						return
					}
					_, _ = c.Write([]byte(strings.Repeat("-ERR \x1b]0;title\a\u202e\x9b2J\r\n", 9)))
				}
			}()
		}
	}()
	url := "redis://" + l.Addr().String()
	for _, args := range [][]string{
		{"inspect", url, "shop"}, {"top", url}, {"pause", url, "shop", "1m"}, {"pause", url, "--all", "--yes", "1m"},
		{"inspect", url, "shop", "--limits", "\x1b[2J"}, {"simulate", "\x1b[2J"},
	} {
		o := try(t, args...)
		if o.status == statusOK || o.err == "" {
			t.Errorf("%.60q: %+v", args, o)
		}
		allShown(t, args, o.out+o.err)
	}
}
