package provider

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/storage/memory"
)

// real is a provider in virtual time: a bucket of tokens whose rate differs from its documentation.
type real struct {
	mu       sync.Mutex
	begin    time.Time
	limit    func(at time.Duration) (size, perSecond float64)
	header   func(h http.Header, size, perSecond float64)
	tokens   float64
	at       time.Time
	passed   int
	refused  int
	possible float64 // that could have passed
}

func (p *real) RoundTrip(r *http.Request) (*http.Response, error) {
	time.Sleep(20 * time.Millisecond)
	p.mu.Lock()
	now := time.Now()
	size, perSecond := p.limit(now.Sub(p.begin))
	p.tokens = min(size, p.tokens+now.Sub(p.at).Seconds()*perSecond)
	p.possible += now.Sub(p.at).Seconds() * perSecond
	p.at = now
	w := &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: r}
	if p.tokens < 1 {
		p.refused++
		w.StatusCode = http.StatusTooManyRequests
		w.Header.Set("Retry-After", "1")
	} else {
		p.tokens--
		p.passed++
	}
	if p.header != nil {
		p.header(w.Header, size, perSecond)
	}
	p.mu.Unlock()
	time.Sleep(30 * time.Millisecond)
	return w, nil
}

// follow has processes that share a storage work off a backlog for a time, and returns the levels of the first, one a second.
func follow(t *testing.T, limit drip.Limit, p *real, span time.Duration, processes int, following bool) (levels []float64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p.begin = time.Now()
		p.at = p.begin
		p.tokens, _ = p.limit(0)
		shared := memory.New()
		followers, buckets, clients := make([]*Follower, processes), make([]*drip.Bucket, processes), make([]*http.Client, processes)
		for i := range processes {
			o := Options(limit)
			o.Storage, o.Start = shared, time.Now()
			followers[i] = &Follower{Limit: limit}
			transport := &Transport{Base: p}
			if following {
				o.Limits, transport.Follower = followers[i].Limits, followers[i]
			}
			b, err := drip.New(o)
			if err != nil {
				t.Fatal(err)
			}
			transport.Bucket, buckets[i], clients[i] = b, b, &http.Client{Transport: transport}
		}
		ctx, cancel := context.WithTimeout(t.Context(), span)
		defer cancel()
		var wg sync.WaitGroup
		for n := range 40 { // each has a message, and gets the next one when that is done
			wg.Go(func() {
				r, b, client := rand.New(rand.NewPCG(1, uint64(n))), buckets[n%processes], clients[n%processes]
				var ticket drip.Ticket
				for ctx.Err() == nil {
					a, err := b.Admit(ctx, "shop", drip.Request{Ticket: ticket})
					if err != nil {
						return
					}
					if ticket = a.Ticket; a.Delay > 0 {
						sleep(ctx, a.Delay+time.Duration(r.IntN(5))*time.Millisecond)
						continue
					}
					q, _ := http.NewRequestWithContext(WithEntity(context.WithoutCancel(ctx), "shop"), "GET", "http://provider.example/", nil)
					response, err := client.Do(q)
					if err != nil {
						t.Error(err)
						return
					}
					response.Body.Close()
					if response.StatusCode != 200 {
						ticket = a.Lease.Ticket()
					}
					if err := b.Settle(context.WithoutCancel(ctx), "shop", a.Lease, 1); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for ctx.Err() == nil {
			time.Sleep(time.Second)
			levels = append(levels, followers[0].Level("shop"))
		}
		wg.Wait()
	})
	return levels
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// quiet is how far levels are from their mean, as a share of it: the standard deviation.
func quiet(levels []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, l := range levels {
		sum += l
		squares += l * l
	}
	mean := sum / float64(len(levels))
	return math.Sqrt(max(0, squares/float64(len(levels))-mean*mean)) / mean
}

var chart = flag.String("chart", "", "a `folder` in which TestFollow draws the levels")

// draw draws the levels of an hour over what the provider really allows, of limit a second.
func draw(t *testing.T, name, title string, levels []float64, p *real, limit float64) {
	t.Helper()
	var real, level strings.Builder
	for s, l := range levels {
		if s%10 == 0 {
			_, perSecond := p.limit(time.Duration(s) * time.Second)
			fmt.Fprintf(&real, "%.1f,%.0f ", 60+float64(s)/6, 230-200*perSecond/limit)
			fmt.Fprintf(&level, "%.1f,%.0f ", 60+float64(s)/6, 230-200*l)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 270" font-family="sans-serif" font-size="12">
<rect width="700" height="270" fill="#fff"/><text x="60" y="18" font-size="14">%s</text>
`, title)
	for i := range 5 {
		fmt.Fprintf(&b, `<path d="M60 %d H660" stroke="#ddd"/><text x="54" y="%d" text-anchor="end">%d %%</text><text x="%d" y="250" text-anchor="middle">%d min</text>
`, 230-50*i, 234-50*i, 25*i, 60+150*i, 15*i)
	}
	fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="#999" stroke-width="3"/><polyline points="%s" fill="none" stroke="#0a5ea8" stroke-width="1.5"/>
<text x="500" y="18" fill="#666">what the provider allows</text><text x="440" y="18" fill="#0a5ea8">level</text>
</svg>
`, real.String(), level.String())
	if err := os.WriteFile(filepath.Join(*chart, name), []byte(b.String()), 0o666); err != nil {
		t.Fatal(err)
	}
}

func constant(size, perSecond float64) func(time.Duration) (float64, float64) {
	return func(time.Duration) (float64, float64) { return size, perSecond }
}

// halved is a limit that is halved from 20 to 30 minutes.
func halved(size, perSecond float64) func(time.Duration) (float64, float64) {
	return func(at time.Duration) (float64, float64) {
		if at > 20*time.Minute && at < 30*time.Minute {
			return size / 2, perSecond / 2
		}
		return size, perSecond
	}
}

// With any real limit of the provider, it refuses at most one call of a hundred, the calls use nine tenths of the
// limit, and the level is calm.
func TestFollow(t *testing.T) {
	const hour = time.Hour
	for name, c := range map[string]struct {
		rules []Rule
		real  *real
		calm  [2]int // the seconds in which the level stands still but for a few hundredths
	}{
		"as the code says":         {[]Rule{TokenBucket(40, 10)}, &real{limit: constant(40, 10)}, [2]int{0, 3600}},
		"half of what it says":     {[]Rule{TokenBucket(40, 10)}, &real{limit: constant(20, 5)}, [2]int{600, 3600}},
		"half, a slow one":         {[]Rule{TokenBucket(40, 2)}, &real{limit: constant(20, 1)}, [2]int{600, 3600}},
		"half, a fast one":         {[]Rule{TokenBucket(200, 50)}, &real{limit: constant(100, 25)}, [2]int{600, 3600}},
		"three quarters":           {[]Rule{TokenBucket(40, 10)}, &real{limit: constant(30, 7.5)}, [2]int{600, 3600}},
		"half for ten minutes":     {[]Rule{TokenBucket(40, 10)}, &real{limit: halved(40, 10)}, [2]int{2400, 3600}},
		"half, and it says so":     {[]Rule{TokenBucket(40, 10)}, &real{limit: constant(20, 5), header: announce}, [2]int{10, 3600}},
		"ten minutes, announced":   {[]Rule{TokenBucket(40, 10)}, &real{limit: halved(40, 10), header: announce}, [2]int{1900, 3600}},
		"half of a sliding window": {[]Rule{SlidingWindow(600, time.Minute)}, &real{limit: constant(60, 5)}, [2]int{600, 3600}},
	} {
		t.Run(name, func(t *testing.T) {
			limit, err := Limit(50*time.Millisecond, c.rules...)
			if err != nil {
				t.Fatal(err)
			}
			p := c.real
			levels := follow(t, limit, p, hour, 1, true)
			refused := float64(p.refused) / float64(p.refused+p.passed)
			used := float64(p.passed) / p.possible
			off := quiet(levels[c.calm[0]:min(c.calm[1], len(levels))])
			t.Logf("%+v: refused %.2f %%, used %.1f %%, the level is off by %.1f %%, and %.3f in the end", limit, 100*refused, 100*used, 100*off, levels[len(levels)-1])
			if file := map[string]string{"half of what it says": "follow-half.svg", "half for ten minutes": "follow-ten-minutes.svg"}[name]; file != "" && *chart != "" {
				draw(t, file, fmt.Sprintf("%s: %.1f %% refused, %.0f %% used", name, 100*refused, 100*used), levels, p, 10)
			}
			if refused > 0.01 || used < 0.9 || off > 0.08 {
				t.Error("want at most 1 % refused, at least 90 % used, and at most 8 % off")
			}
		})
	}
}

// Without a Follower more is refused, and less is used: what a Follower is for.
func TestWithoutFollower(t *testing.T) {
	limit, err := Limit(50*time.Millisecond, TokenBucket(40, 10))
	if err != nil {
		t.Fatal(err)
	}
	p := &real{limit: constant(20, 5)}
	follow(t, limit, p, 10*time.Minute, 1, false)
	refused, used := float64(p.refused)/float64(p.refused+p.passed), float64(p.passed)/p.possible
	t.Logf("refused %.1f %%, used %.1f %%", 100*refused, 100*used)
	if refused < 0.01 {
		t.Error("this provider refuses nothing: it shows nothing about a Follower")
	}
}

// Followers of several processes know only the responses to their own calls. They keep to the limit, too, and use less
// of it.
func TestFollowersOfFourProcesses(t *testing.T) {
	limit, err := Limit(50*time.Millisecond, TokenBucket(40, 10))
	if err != nil {
		t.Fatal(err)
	}
	p := &real{limit: constant(20, 5)}
	follow(t, limit, p, time.Hour, 4, true)
	refused, used := float64(p.refused)/float64(p.refused+p.passed), float64(p.passed)/p.possible
	t.Logf("refused %.2f %%, used %.1f %%", 100*refused, 100*used)
	if refused > 0.01 || used < 0.75 {
		t.Error("want at most 1 % refused, and at least 75 % used")
	}
}

func TestFollowerByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := drip.Limit{Size: 20, RefreshRate: 10, RefreshInterval: time.Second, Windows: []drip.Window{{Size: 6000, RefreshInterval: time.Hour}}}
		f := &Follower{Limit: limit}
		of := func() drip.Limit {
			t.Helper()
			time.Sleep(time.Second/2 - time.Duration(time.Now().UnixNano())%time.Second + time.Second) // in the middle of one
			l, err := f.Limits(t.Context(), "shop")
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		if l := of(); l.RefreshInterval != time.Second || f.Level("shop") != 1 {
			t.Errorf("nobody was refused: %+v at %v", l, f.Level("shop"))
		}
		f.Seen("shop", Status{Throttled: true})
		if l := of(); f.Level("shop") != 0.8 || l.Size != 16 || l.RefreshRate != 10 || l.RefreshInterval != 1250*time.Millisecond || l.Windows[0].Size != 4800 || l.Windows[0].RefreshInterval != time.Hour {
			t.Errorf("after a refusal: %+v at %v", l, f.Level("shop"))
		}
		f.Seen("shop", Status{Throttled: true}) // which belongs to the first
		if of(); f.Level("shop") != 0.8 {
			t.Errorf("after another one: %v", f.Level("shop"))
		}
		f.Seen("shop", Status{Quotas: []Quota{{Unit: "requests", Limit: 120, Window: time.Minute, Remaining: Unknown}}})
		f.Seen("shop", Status{Quotas: []Quota{{Unit: "requests", Limit: 60, Window: time.Minute, Remaining: 3, Reset: 30 * time.Second}}})
		if of(); f.Level("shop") < 0.05 || f.Level("shop") > 0.07 { // 0.1 a second of 1.67
			t.Errorf("nearly nothing is left: %v", f.Level("shop"))
		}
		for range 40 { // time goes by with responses
			time.Sleep(30 * time.Second)
			f.Seen("shop", Status{})
			of()
		}
		if f.Level("shop") != 1 {
			t.Errorf("20 minutes later: %v", f.Level("shop"))
		}
		time.Sleep(5 * time.Minute)
		if of(); f.Level("shop") != 0.5 {
			t.Errorf("after a pause: %v", f.Level("shop"))
		}
		time.Sleep(time.Minute - time.Second)
		f.Seen("shop", Status{})
		time.Sleep(11 * time.Second)
		if of(); f.Level("shop") != 1 {
			t.Errorf("a minute after the pause: %v", f.Level("shop"))
		}
		if _, err := new(Follower).Limits(t.Context(), "shop"); err == nil {
			t.Error("a Follower without a Limit has one")
		}
	})
}

// announce has responses say what the limit is.
func announce(h http.Header, size, perSecond float64) {
	window := size / perSecond
	h.Set("RateLimit-Policy", fmt.Sprintf(`"bucket";q=%.0f;w=%.0f`, size, window))
}

// The windows of a lower level count the same units, and a rate of calls is compared with windows of calls.
func TestFollowUnits(t *testing.T) {
	limit := drip.Limit{Size: 100, RefreshRate: 10, RefreshInterval: time.Second, Unit: Tokens, Windows: []drip.Window{
		{Size: 50, RefreshRate: 5, RefreshInterval: time.Second}, {Size: 40, RefreshInterval: time.Second, Unit: InputTokens},
	}}
	half := scaled(limit, 0.5)
	if half.Unit != Tokens || half.Windows[0].Unit != "" || half.Windows[1].Unit != InputTokens || half.Windows[1].Size != 20 {
		t.Errorf("half of it is %+v", half)
	}
	quota := Status{Quotas: []Quota{{Unit: "requests", PerSecond: 2.5}}}
	for want, l := range map[float64]drip.Limit{0.5: limit, 1: {Size: 100, RefreshRate: 10, RefreshInterval: time.Second, Unit: Tokens}} {
		if got := (&Follower{Limit: l}).announced(quota); got != want {
			t.Errorf("2.5 calls a second are %v of %+v, want %v", got, l, want)
		}
	}
}
