package provider

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
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
			const begin, end = 1_700_000_000_000, 1_700_000_000_000 + minutes*60_000
			provider := map[string]*bucket{"": {size: 50}, InputTokens: {size: 30_000}, OutputTokens: {size: 8_000}}
			for _, b := range provider {
				b.perMS, b.at = b.size/60_000, begin
			}
			rnd := rand.New(rand.NewPCG(1, 1))
			used := map[string]float64{}
			postponed, ran := 0, 0
			load := buckettest.Load{
				Options: Options(limit), End: end,
				Runs: func(m *buckettest.Call, now int64) int64 {
					ran++
					input, output := float64(m.Request.Costs[InputTokens]), float64(m.Request.Costs[OutputTokens])
					provider[""].charge(now, 1)
					provider[InputTokens].charge(now, input)
					provider[OutputTokens].charge(now, output)
					used[""]++
					used[InputTokens] += input
					return now + 2000
				},
				Settles: func(m *buckettest.Call, now int64) drip.Costs {
					estimate := m.Request.Costs[OutputTokens]
					output := estimate * (1 + rnd.IntN(10)) / 10
					provider[OutputTokens].charge(now, float64(output-estimate))
					used[OutputTokens] += float64(output)
					return drip.Costs{OutputTokens: output}
				},
			}
			for i := range c.calls { // more than the limit allows
				load.Calls = append(load.Calls, &buckettest.Call{
					At: begin + int64(i)*minutes*60_000/int64(c.calls), Entity: "acme",
					Request: drip.Request{Costs: drip.Costs{InputTokens: 1 + rnd.IntN(c.input), OutputTokens: c.output}},
				})
			}
			load.Play(t)
			for _, m := range load.Calls {
				postponed += m.Postponements
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

// The day of Gemini is the provider's.
func TestGeminiDay(t *testing.T) {
	o, err := Gemini(15, 250_000, 1000).Options(time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := drip.New(o); err != nil {
		t.Error(err)
	}
	daily := o.Windows[len(o.Windows)-1]
	if daily.Align.String() != "daily America/Los_Angeles" || daily.Size != 950 || daily.RefreshRate != daily.Size && daily.RefreshRate != 0 {
		t.Errorf("the day is %+v", daily)
	}
}

// Small limits are kept, too.
func TestSmallGemini(t *testing.T) {
	if _, err := Gemini(2, 3, 20).Limit(time.Second); err != nil {
		t.Error(err)
	}
	if _, err := Gemini(2, 1, 20).Limit(time.Second); err == nil || !strings.Contains(err.Error(), "the number is 1") {
		t.Errorf("of one token a minute: %v", err)
	}
}

func TestOpenAI(t *testing.T) {
	o, err := OpenAI(500, 30_000).Options(time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := drip.New(o); err != nil {
		t.Error(err)
	}
	if len(o.Windows) != 1 || o.Unit != "" || o.Windows[0].Unit != Tokens {
		t.Errorf("the windows are %+v and %+v", o.Unit, o.Windows)
	}
}
