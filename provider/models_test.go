package provider

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drip-go/drip"
)

// bucket counts as a provider does whose buckets refill evenly, and shares nothing with drip. It is charged the estimate when
// a call begins and corrected when it ends.
type bucket struct {
	size, perMS, level float64
	at                 int64
	over               int
}

func (b *bucket) charge(at int64, n float64) {
	b.level = max(0, b.level-b.perMS*float64(at-b.at)) + n
	b.at = at
	if n > 0 && b.level > b.size+1e-6 {
		b.over++
	}
}

// Calls of a language model that cost between a tenth and the whole of their estimate. No call is over the limits of a
// provider that counts for itself, and the calls use the short limit.
func TestModelsAreKept(t *testing.T) {
	const minutes = 20
	for name, c := range map[string]struct {
		calls, input, output int // of a call, at most
	}{"calls are short": {1150, 200, 50}, "input is short": {550, 2500, 50}, "output is short": {370, 200, 900}} {
		t.Run(name, func(t *testing.T) {
			preset, err := Named("Anthropic, tier 1")
			if err != nil {
				t.Fatal(err)
			}
			limit, err := preset.Limit(travel)
			if err != nil {
				t.Fatal(err)
			}
			const begin = 1_700_000_000_000
			now := int64(begin)
			o := Options(limit)
			o.Start, o.Clock = time.UnixMilli(0), func() time.Time { return time.UnixMilli(now) }
			drips, err := drip.New(o)
			if err != nil {
				t.Fatal(err)
			}
			provider := map[string]*bucket{"": {size: 50}, InputTokens: {size: 30_000}, OutputTokens: {size: 8_000}}
			for _, b := range provider {
				b.perMS, b.at = b.size/60_000, begin
			}
			rnd := rand.New(rand.NewPCG(1, 1))
			type call struct {
				ticket        drip.Ticket
				lease         drip.Lease
				input, output int
			}
			due := map[int64][]*call{} // by ms
			for i := range c.calls {   // more than the limit allows
				at := begin + int64(i)*minutes*60_000/int64(c.calls)
				due[at] = append(due[at], &call{input: 1 + rnd.IntN(c.input), output: c.output})
			}
			used := map[string]float64{}
			postponed, ran := 0, 0
			for ; now < begin+minutes*60_000; now++ {
				for _, m := range due[now] {
					if m.lease != (drip.Lease{}) { // over
						output := m.output * (1 + rnd.IntN(10)) / 10
						if err := drips.Settle(t.Context(), "acme", m.lease, 1, drip.Costs{OutputTokens: output}); err != nil {
							t.Fatal(err)
						}
						provider[OutputTokens].charge(now, float64(output-m.output))
						used[OutputTokens] += float64(output)
						continue
					}
					a, err := drips.Admit(t.Context(), "acme", drip.Request{Ticket: m.ticket, Costs: drip.Costs{InputTokens: m.input, OutputTokens: m.output}})
					if err != nil {
						t.Fatal(err)
					}
					if a.Delay > 0 {
						postponed++
						m.ticket = a.Ticket
						at := now + a.Delay.Milliseconds()
						due[at] = append(due[at], m)
						continue
					}
					m.lease, m.ticket = a.Lease, drip.Ticket{}
					ran++
					provider[""].charge(now, 1)
					provider[InputTokens].charge(now, float64(m.input))
					provider[OutputTokens].charge(now, float64(m.output))
					used[""]++
					used[InputTokens] += float64(m.input)
					due[now+2000] = append(due[now+2000], m)
				}
				delete(due, now)
			}
			most := 0.0
			for unit, b := range provider {
				share := used[unit] / (b.perMS*minutes*60_000 + b.size)
				most = max(most, share)
				if b.over > 0 {
					t.Errorf("%d calls over the limit of %q", b.over, unit)
				}
				t.Logf("%q is used to %.2f", unit, share)
			}
			t.Logf("%d calls, %.2f postponements each", ran, float64(postponed)/float64(max(1, ran)))
			if most < 0.9 {
				t.Errorf("nothing is used to more than %.2f", most)
			}
		})
	}
}
