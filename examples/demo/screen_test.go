package main

import (
	"encoding/xml"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/drip-go/drip/internal/oktest"
)

var some = snapshot{elapsed: 3140 * time.Millisecond, app: 13, limit: 20, shops: []shopNow{
	{name: "shop-01", orders: 270, done: 50, inFlight: 7, postponed: 213, used: 10, limit: 10, eta: 22 * time.Second},
	{name: "shop-02", orders: 30, done: 30, limit: 20},
	{name: "shop-03", orders: 10, done: 10, used: 3, limit: 10, refused: 1},
}}

func TestTable(t *testing.T) {
	want := `
shop            done in flight postponed  this second                       ETA
shop-01     50/270           7       213   10 of 10   [##..............]   22 s
shop-02     30/30            0         0              [################]   done
shop-03     10/10            0         0    3 of 10   [################]   done
all         90/310           7       213   13 of 20   [####............]   22 s
3.1 s. Calls refused by the provider: 1`
	if got := "\n" + table(some); got != want {
		t.Errorf("got%s\nwant%s", got, want)
	}
}

func TestLine(t *testing.T) {
	want := "  3.1 s: 90 of 310 done, 7 in flight, 213 postponed, 13 calls in this second, 1 refused, 22 s to go"
	if got := line(some); got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// Everything fits a terminal of 80 columns and 24 lines, whatever the numbers.
func TestFits(t *testing.T) {
	many := snapshot{elapsed: time.Hour}
	for range 40 {
		many.shops = append(many.shops, shopNow{
			name: "shop-40", orders: 2000, done: 1234, inFlight: 20, postponed: 746, used: 20, limit: 20, eta: 9999 * time.Second,
		})
	}
	r := result{name: "shop-40", orders: 99_999, calls: 99_999, refused: 9999, undone: 9999, twice: 9999, postponements: 999_990, most: 999, wait: 999 * time.Second, took: 999 * time.Second}
	big := sharedResult{
		calls: map[string]int{appLimit: 99_999}, refused: map[string]int{appLimit: 99_999}, used: 1,
		urgent: 999, urgentMean: 999 * time.Second, urgentMost: 999 * time.Second, othersMean: 999 * time.Second,
	}
	for _, text := range []string{table(many), table(snapshot{}), summary([]result{r, r}, 0), summary([]result{r, {}}, 3), shared(big, sharedRules(12)), shared(sharedResult{}, sharedRules(1))} {
		for l := range strings.SplitSeq(text, "\n") {
			if n := utf8.RuneCountInString(l); n > 79 {
				t.Errorf("%d characters: %s", n, l)
			}
		}
	}
	if n := strings.Count(table(many), "\n"); n > 22 {
		t.Errorf("%d lines", n)
	}
}

func TestPlainOutputHasNoControlCodes(t *testing.T) {
	var out strings.Builder
	s := &screen{out: &out}
	start := time.Now()
	s.say("Starting ...")
	for i := range 100 { // 10 seconds
		s.show(some, start.Add(time.Duration(i)*100*time.Millisecond))
	}
	s.say("a warning")
	s.say(summary([]result{{name: "all"}}, 0))
	for _, c := range out.String() {
		if unicode.IsControl(c) && c != '\n' {
			t.Fatalf("control code %q in\n%s", c, out.String())
		}
	}
	if got := strings.Count(out.String(), line(some)+"\n"); got != 4 {
		t.Errorf("%d lines in 10 seconds, want one each 3 seconds:\n%s", got, out.String())
	}
}

// On a terminal the screen redraws the table in place, and the text of say stays above it.
func TestTerminal(t *testing.T) {
	var out strings.Builder
	s := &screen{out: &out, terminal: true}
	start := time.Now()
	s.show(some, start)
	s.show(some, start.Add(time.Millisecond)) // too soon
	s.show(some, start.Add(time.Second))
	s.say("a warning\n")
	s.show(some, start.Add(2*time.Second))
	frame := noWrap + table(some) + "\n" + wrap
	up := "\x1b[6A\r\x1b[J"
	if got, want := out.String(), frame+up+frame+up+"a warning\n\n"+frame; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestVerdict(t *testing.T) {
	if text, ok := verdict(result{orders: 30}, nil, nil, nil); !ok || text != "OK: 30 messages handled, none lost, no call refused." {
		t.Errorf("%t %q", ok, text)
	}
	for _, c := range []struct {
		all     result
		left    map[string]int
		missing []string
		cause   error
		want    string
	}{
		{result{refused: 2}, nil, nil, nil, "FAILED\n  calls that the provider refused: 2"},
		{result{}, map[string]int{"q": 1}, nil, nil, "FAILED\n  messages left in q: 1"},
		{result{undone: 3}, map[string]int{"b": 1, "a": 1}, []string{"message 7"}, errors.New("not finished"), `FAILED
  not finished
  messages that were not handled: 3; in the queues: 2
  messages left in a: 1
  messages left in b: 1
  message 7`},
	} {
		if text, ok := verdict(c.all, c.left, c.missing, c.cause); ok || text != c.want {
			t.Errorf("%t\n%s\nwant\n%s", ok, text, c.want)
		}
	}
}

// A recording is XML, has a frame each second and the text of the end.
func TestRecording(t *testing.T) {
	var r recording
	start := time.Now()
	for i := range 30 { // 3 seconds
		r.add(table(some)+" <&>", start.Add(time.Duration(i)*100*time.Millisecond))
	}
	file := filepath.Join(t.TempDir(), "demo.svg")
	oktest.OK(t, r.write(file, "the end"))
	text, err := os.ReadFile(file)
	oktest.OK(t, err)
	oktest.OK(t, xml.Unmarshal(text, new(any)))
	if n := strings.Count(string(text), "<g "); n != 4 {
		t.Errorf("%d frames, want 4:\n%s", n, text)
	}
	if !strings.Contains(string(text), ">the end</text>") {
		t.Error("the end is not there")
	}
}
