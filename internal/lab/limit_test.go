package lab

import (
	"reflect"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/decision"
)

// The limits are the same as drip's, defaults included.
func TestLimitOf(t *testing.T) {
	minute := drip.Window{Size: 100, RefreshInterval: time.Minute}
	for _, c := range []struct {
		options drip.Options
		own     drip.Limit
		want    limit
	}{
		{want: limit{[]window{{size: 100, rate: 50, interval: 1000}}, 100}},
		{
			options: drip.Options{Size: 9, RefreshRate: 2, RefreshInterval: 500 * time.Millisecond, Concurrency: 3, Windows: []drip.Window{minute}},
			want:    limit{[]window{{size: 9, rate: 2, interval: 500}, {size: 100, rate: 100, interval: 60000}}, 3},
		},
		{
			options: drip.Options{Size: 100, RefreshRate: 100, Concurrency: 7, Windows: []drip.Window{minute}, Share: 0.29},
			want:    limit{[]window{{size: 29, rate: 29, interval: 1000}, {size: 29, rate: 29, interval: 60000}}, 2},
		},
		{
			options: drip.Options{Size: 9, RefreshRate: 2, Concurrency: 3},
			own:     drip.Limit{Size: 5, RefreshRate: 1, RefreshInterval: time.Minute, Concurrency: 1, Windows: []drip.Window{minute}},
			want:    limit{[]window{{size: 5, rate: 1, interval: 60000}, {size: 100, rate: 100, interval: 60000}}, 1},
		},
		{
			options: drip.Options{Size: 9, RefreshRate: 2, Unit: "tokens"},
			want:    limit{[]window{{size: 9, rate: 2, interval: 1000, unit: "tokens"}}, decision.MostUnits},
		},
		{
			options: drip.Options{Size: 5, Windows: []drip.Window{{Size: 8, RefreshRate: 20, RefreshInterval: time.Minute}}},
			want:    limit{[]window{{size: 5, rate: 5, interval: 1000}, {size: 8, rate: 8, interval: 60000}}, 5},
		},
	} {
		if got := limitOf(&c.options, &c.own); !reflect.DeepEqual(got, c.want) {
			t.Errorf("limitOf(%+v, %+v) = %v, want %v", c.options, c.own, got, c.want)
		}
	}
}

func TestAllowed(t *testing.T) {
	eras := []era{
		{limit: limit{[]window{{size: 10, rate: 2, interval: 1000}}, 3}},
		{from: 5500, limit: limit{[]window{{size: 20, rate: 5, interval: 1000}}, 4}},
	}
	for _, c := range []struct {
		window   int
		from, to int64
		want     float64
	}{
		{0, 1000, 1000, 10},
		{0, 1000, 1999, 10},
		{0, 1000, 2000, 12},
		{0, 999, 2000, 14},
		{0, 1000, 7000, 10 + 4*2 + 2*5},
		{0, 6000, 7000, 20 + 5},
		{1, 1000, 2500, 3 * 1500},
		{1, 5000, 6000, 3*500 + 4*500},
	} {
		if got := allowed(eras, c.window, c.from, c.to); got != c.want {
			t.Errorf("allowed(%d, %d, %d) = %v, want %v", c.window, c.from, c.to, got, c.want)
		}
	}
}
