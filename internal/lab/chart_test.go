package lab

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip"
)

func TestWriteSVG(t *testing.T) {
	busy := mustRun(t, Scenario{
		Name: "rate <&> burst", About: "\"quoted\"\x1b",
		Options:  drip.Options{Size: 2, RefreshRate: 1},
		Arrivals: Mixed(Burst(12, 500*time.Millisecond), Poisson(1, 0, time.Minute)), Operation: Fixed(100 * time.Millisecond),
	}, 1)
	empty := mustRun(t, Scenario{Name: "no message", Arrivals: Burst(0, 0), Operation: Fixed(0)}, 1)
	var b strings.Builder
	ok(t, WriteSVG(&b, busy, empty, Report{}))
	said := map[string]bool{}
	paths := 0
	for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		ok(t, err)
		switch token := token.(type) {
		case xml.CharData:
			said[string(token)] = true
		case xml.StartElement:
			if token.Name.Local == "path" {
				paths++
			}
			for _, a := range token.Attr {
				if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") {
					t.Errorf("%s %s is %q", token.Name.Local, a.Name.Local, a.Value)
				}
			}
		}
	}
	for _, want := range []string{"rate <&> burst", "\"quoted\"\ufffd", "no message", "arrived", "admit", "classic", "retry-after", "optimum", "messages", "30 s"} {
		if !said[want] {
			t.Errorf("it says nowhere %q", want)
		}
	}
	if paths < 30 {
		t.Errorf("only %d paths were drawn", paths)
	}
}

// The axis begins with the first message, whatever the time of day at which it arrives.
func TestChartBeginsAtTheFirstArrival(t *testing.T) {
	const noon = 12 * time.Hour
	r := mustRun(t, Scenario{
		Name: "noon", Options: drip.Options{Size: 2, RefreshRate: 1}, Arrivals: Burst(12, noon), Operation: Fixed(100 * time.Millisecond),
	}, 1)
	from, to := r.shown()
	if from != since(noon) || to <= from || to > since(noon+time.Minute) {
		t.Errorf("it shows %v to %v", milliseconds(from-since(0)), milliseconds(to-since(0)))
	}
}
