package lab

import (
	"slices"
	"testing"
	"time"

	"github.com/drip-go/drip"
)

func TestOptimum(t *testing.T) {
	const s = 1000
	type m = message // at these times since Begin
	of := func(calls int) []cost { return []cost{{"", calls, calls}} }
	at := func(times ...int64) (all []m) { // of one call each
		for _, t := range times {
			all = append(all, m{arrival: t, costs: of(1)})
		}
		return all
	}
	for name, c := range map[string]struct {
		options  drip.Options
		changes  []Change
		outage   Outage
		messages []m
		want     []int64
	}{
		"the size at once, then the rate": {
			options:  drip.Options{Size: 3, RefreshRate: 2},
			messages: at(500, 500, 500, 500, 500, 500, 9500),
			want:     []int64{500, 500, 500, 1 * s, 1 * s, 2 * s, 9500},
		},
		"no more than the size is gathered": {
			options: drip.Options{Size: 2, RefreshRate: 2},
			messages: []m{
				{arrival: 500, costs: of(2)}, {arrival: 9500, costs: of(1)}, {arrival: 9500, costs: of(1)}, {arrival: 9500, costs: of(1)},
			},
			want: []int64{500, 9500, 9500, 10 * s},
		},
		"the first of an entity comes first, whatever it costs": {
			options: drip.Options{Size: 10, RefreshRate: 3, Concurrency: 100},
			messages: []m{
				{arrival: 100, costs: of(9)},
				{arrival: 200, costs: of(8)}, // 7 are missing: three intervals
				{arrival: 300, costs: of(1)}, // would have fitted
				{arrival: 3100, costs: of(3)},
			},
			want: []int64{100, 3 * s, 3 * s, 4 * s},
		},
		"a cost above the size is owed": {
			options:  drip.Options{Size: 3, RefreshRate: 1, Concurrency: 100},
			messages: []m{{arrival: 100, costs: of(5)}, {arrival: 100, costs: of(1)}},
			want:     []int64{100, 3 * s},
		},
		"a window of another unit": {
			options: drip.Options{Size: 9, RefreshRate: 9, Windows: []drip.Window{{Size: 10, RefreshRate: 5, RefreshInterval: time.Second, Unit: "tokens"}}},
			messages: []m{
				{arrival: 100, costs: []cost{{"", 1, 1}, {"tokens", 9, 6}}},
				{arrival: 100, costs: []cost{{"", 1, 1}, {"tokens", 9, 4}}},
				{arrival: 200, costs: []cost{{"", 1, 1}, {"tokens", 9, 0}}},
				{arrival: 200, costs: []cost{{"", 1, 1}, {"tokens", 9, 6}}},
			},
			want: []int64{100, 100, 200, 2 * s},
		},
		"two at once": {
			options: drip.Options{Concurrency: 2},
			messages: []m{
				{arrival: 100, travel: 50, operation: 500, costs: of(1)}, // to 650
				{arrival: 100, operation: 200, costs: of(1)},             // to 300
				{arrival: 150, operation: 1000, costs: of(1)},            // to 1300
				{arrival: 160, operation: 1, costs: of(1)},               // to 651
				{arrival: 170, operation: 1, costs: of(1)},
				{arrival: 5000, operation: 1, costs: of(1)},
			},
			want: []int64{100, 100, 300, 650, 651, 5000},
		},
		"two windows": {
			options:  drip.Options{Size: 2, RefreshRate: 2, Windows: []drip.Window{{Size: 3, RefreshInterval: time.Minute}}},
			messages: at(100, 100, 100, 100, 100, 100, 100),
			want:     []int64{100, 100, 1 * s, 60 * s, 60 * s, 61 * s, 120 * s},
		},
		"an outage": {
			options:  drip.Options{Size: 3, RefreshRate: 1},
			outage:   Outage{From: time.Second, To: 10 * time.Second},
			messages: at(999, 1000, 9999, 9999, 9999),
			want:     []int64{999, 10 * s, 10 * s, 10 * s, 11 * s},
		},
		"limits that change": {
			options: drip.Options{Size: 2, RefreshRate: 1},
			changes: []Change{
				{At: 2500 * time.Millisecond, Limit: &drip.Limit{Size: 10, RefreshRate: 5}},
				{At: 4500 * time.Millisecond, Limit: &drip.Limit{Size: 1, RefreshRate: 1}},
			},
			messages: []m{
				{arrival: 100, costs: of(2)}, {arrival: 100, costs: of(1)}, {arrival: 100, costs: of(1)}, // 2 of 2, a second each
				{arrival: 100, costs: of(1)}, {arrival: 100, costs: of(1)}, // of the 5 of the third second
				{arrival: 4600, costs: of(1)}, // 8 are left, of which 1 has room
				{arrival: 4600, costs: of(1)},
			},
			want: []int64{100, 1 * s, 2 * s, 3 * s, 3 * s, 4600, 5 * s},
		},
	} {
		t.Run(name, func(t *testing.T) {
			scenario := Scenario{Options: c.options, Begin: Begin, Changes: c.changes, Outage: c.outage}
			begin := Begin.UnixMilli()
			var messages []*message
			for _, m := range c.messages {
				m.arrival += begin
				messages = append(messages, &m)
			}
			var got []int64
			for _, start := range optimum(messages, scenario.eras(), scenario.closed()) {
				got = append(got, start-begin)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got  %v\nwant %v", got, c.want)
			}
		})
	}
}
