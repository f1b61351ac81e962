package provider

import (
	"context"
	"errors"
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
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/sleep"
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

// calls returns how many calls have passed so far.
func (p *real) calls() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passed
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

// follow has processes that share a storage work off a backlog of a shop for a time, and returns its levels, one a second.
func follow(t *testing.T, limit drip.Limit, p *real, span time.Duration, processes int, following bool, operator ...func(time.Duration, *drip.Bucket) error) (levels []float64) {
	t.Helper()
	o := Options(limit)
	o.Follow = following
	return backlog(t, o, "shop", p, span, processes, operator...)
}

// backlog is follow with options. The provider's limit belongs to an entity or, with four shops, a shared limit.
func backlog(t *testing.T, o drip.Options, subject string, p *real, span time.Duration, processes int, operator ...func(time.Duration, *drip.Bucket) error) (levels []float64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p.begin = time.Now()
		p.at = p.begin
		p.tokens, _ = p.limit(0)
		o.Storage, o.Start = memory.New(), time.Now()
		buckets, clients := make([]*drip.Bucket, processes), make([]*http.Client, processes)
		for i := range processes {
			b := buckettest.New(t, o)
			buckets[i], clients[i] = b, &http.Client{Transport: &Transport{Bucket: b, Base: p}}
		}
		ctx, cancel := context.WithTimeout(t.Context(), span)
		defer cancel()
		var wg sync.WaitGroup
		for n := range 40 { // each has a message, and gets the next one when that is done
			wg.Go(func() {
				r, b, client := rand.New(rand.NewPCG(1, uint64(n))), buckets[n%processes], clients[n%processes]
				var ticket drip.Ticket
				shop := subject
				if subject != "shop" {
					shop = fmt.Sprint("shop-", n%4)
				}
				for ctx.Err() == nil {
					a, err := b.Admit(ctx, shop, drip.Request{Ticket: ticket})
					if err != nil {
						return
					}
					if ticket = a.Ticket; a.Delay > 0 {
						sleep.For(ctx, a.Delay+time.Duration(r.IntN(5))*time.Millisecond)
						continue
					}
					q, _ := http.NewRequestWithContext(WithEntity(context.WithoutCancel(ctx), subject), "GET", "http://provider.example/", nil)
					response, err := client.Do(q)
					if err != nil {
						t.Error(err)
						return
					}
					response.Body.Close()
					if response.StatusCode != 200 {
						ticket = a.Lease.Ticket()
					}
					if err := b.Settle(context.WithoutCancel(ctx), shop, a.Lease, 1); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for ctx.Err() == nil {
			time.Sleep(time.Second)
			status, err := buckets[len(levels)%processes].Inspect(t.Context(), subject)
			if err != nil {
				t.Error(err)
			}
			levels = append(levels, status.Level)
			for _, each := range operator {
				if err := each(time.Since(p.begin), buckets[0]); err != nil {
					t.Error(err)
				}
			}
		}
		wg.Wait()
	})
	return levels
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
	ok(t, os.WriteFile(filepath.Join(*chart, name), []byte(b.String()), 0o666))
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

// Four processes follow one level. With any real limit of the provider, it refuses at most one call of a hundred, the calls
// use nine tenths of the limit, and the level is calm.
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
			limit := limitOf(t, c.rules...)
			p := c.real
			levels := follow(t, limit, p, hour, 4, true)
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

// Without Options.Follow more is refused.
func TestWithoutFollow(t *testing.T) {
	limit := limitOf(t, TokenBucket(40, 10))
	p := &real{limit: constant(20, 5)}
	follow(t, limit, p, 10*time.Minute, 1, false)
	refused, used := float64(p.refused)/float64(p.refused+p.passed), float64(p.passed)/p.possible
	t.Logf("refused %.1f %%, used %.1f %%", 100*refused, 100*used)
	if refused < 0.01 {
		t.Error("this provider refuses nothing: it shows nothing about Follow")
	}
}

// announce has responses say what the limit is.
func announce(h http.Header, size, perSecond float64) {
	window := size / perSecond
	h.Set("RateLimit-Policy", fmt.Sprintf(`"bucket";q=%.0f;w=%.0f`, size, window))
}

// A shared limit follows as an entity does.
func TestSharedLimitFollows(t *testing.T) {
	limit := limitOf(t, TokenBucket(40, 10))
	p := &real{limit: halved(40, 10)}
	o := drip.Options{Size: 1000, RefreshRate: 1000, Shared: map[string]drip.Limit{"app": limit}, Follow: true}
	levels := backlog(t, o, drip.SharedID("app"), p, time.Hour, 4)
	refused, used := float64(p.refused)/float64(p.refused+p.passed), float64(p.passed)/p.possible
	t.Logf("refused %.2f %%, used %.1f %%, the level is %.3f after 25 minutes and %.3f in the end", 100*refused, 100*used, levels[1500], levels[len(levels)-1])
	if refused > 0.01 || used < 0.9 || quiet(levels[2400:]) > 0.08 {
		t.Error("want at most 1 % refused, at least 90 % used, and a calm level")
	}
}

// A pin and the level do not disturb each other: both hold. A pin that raises begins without a level, and Unpin leaves none.
func TestPinWhileFollowing(t *testing.T) {
	limit := limitOf(t, TokenBucket(40, 10))
	perSecond := func(n int) drip.Pin {
		return drip.Pin{Window: drip.Window{Size: n, RefreshInterval: time.Second}}
	}
	p := &real{limit: constant(20, 5)}
	var passed, before int
	levels := follow(t, limit, p, 50*time.Minute, 4, true, func(at time.Duration, b *drip.Bucket) (err error) {
		switch at {
		case 10 * time.Minute:
			before, err = p.calls(), b.Pin(t.Context(), "shop", perSecond(2))
		case 20 * time.Minute:
			passed, err = p.calls()-before, b.Unpin(t.Context(), "shop")
		}
		return err
	})
	refused := float64(p.refused) / float64(p.refused+p.passed)
	t.Logf("refused %.2f %%, %d passed in 10 minutes at 2 a second, the level is %.3f before the pin and %.3f in the end", 100*refused, passed, levels[590], levels[len(levels)-1])
	if passed < 1150 || passed > 1205 {
		t.Errorf("%d calls passed while 2 a second were pinned", passed)
	}
	if refused > 0.01 || quiet(levels[35*60:]) > 0.08 || levels[len(levels)-1] > 0.65 {
		t.Error("want at most 1 % refused, and the level of before")
	}

	limit = limitOf(t, TokenBucket(20, 5))
	raised := drip.Pin{Window: drip.Window{Size: 38, RefreshRate: 2, RefreshInterval: limit.RefreshInterval}, Raise: true}
	p = &real{limit: func(at time.Duration) (float64, float64) { // half of it, and then twice of it
		if at < 20*time.Minute {
			return 10, 2.5
		}
		return 40, 10
	}}
	levels = follow(t, limit, p, 40*time.Minute, 4, true, func(at time.Duration, b *drip.Bucket) (err error) {
		switch at {
		case 20 * time.Minute:
			err = b.Pin(t.Context(), "shop", raised)
		case 30 * time.Minute:
			before, err = p.calls(), b.Unpin(t.Context(), "shop")
		}
		return err
	})
	t.Logf("the level is %.3f, and %.3f with the raised limit; then %d calls passed in 10 minutes", levels[1190], levels[1220], p.passed-before)
	if levels[1190] > 0.65 || levels[1220] != 1 || p.passed-before > 5*600+20 {
		t.Error("want a level of a half, then all of the raised limit, then no more than the limit")
	}
}

// announcedTo is a Bucket that is told of rates.
type announcedTo []float64

func (a *announcedTo) Throttled(context.Context, string, time.Duration) error { return nil }

func (a *announcedTo) Announced(_ context.Context, _ string, perSecond float64, _ time.Duration) error {
	*a = append(*a, perSecond)
	return nil
}

// gets sends n requests through a Transport, one each time every, and answers each with the fields of its number.
func gets(t *testing.T, bucket Throttler, n int, every time.Duration, fields func(i int) http.Header) {
	t.Helper()
	i := 0
	client := &http.Client{Transport: &Transport{Bucket: bucket, Base: roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: fields(i), Body: http.NoBody, Request: r}, nil
	})}}
	for ; i < n; i++ {
		response, err := client.Get("http://provider.example/")
		ok(t, err)
		response.Body.Close()
		time.Sleep(every)
	}
}

// Transport tells a rate when it changes, and again before the bucket forgets it.
func TestAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told announcedTo
		hours := []http.Header{{}, {"Ratelimit-Policy": {`"a";q=50;w=10`}}, {"Ratelimit-Policy": {`"a";q=300;w=30`}}}
		gets(t, &told, 3*3600, time.Second, func(i int) http.Header { return hours[i/3600] })
		if n := len(told); n < 20 || n > 26 || told[0] != 5 || told[11] != 5 || told[n-1] != 10 {
			t.Errorf("told %v", told)
		}
	})
}

// A response that tells no rate, such as one from a cache, does not end the rate that others have told.
func TestAnnouncedByOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told announcedTo
		headers := []http.Header{
			{"Ratelimit-Policy": {`"a";q=50;w=10`}},
			{"Ratelimit-Policy": {`"a";q=50;w=10`}, "Age": {"9"}},
			{},
		}
		gets(t, &told, 100, 2*time.Second, func(i int) http.Header { return headers[i%len(headers)] })
		if len(told) != 1 || told[0] != 5 {
			t.Errorf("told %v", told)
		}
	})
}

// unreachable is a Bucket whose storage does not answer for a while.
type unreachable struct {
	announcedTo
	until time.Time
	tries int
}

func (u *unreachable) Announced(ctx context.Context, entity string, perSecond float64, d time.Duration) error {
	if u.tries++; time.Now().Before(u.until) {
		return errors.New("connection refused")
	}
	return u.announcedTo.Announced(ctx, entity, perSecond, d)
}

// Transport tells a rate soon after the storage answers again, and does not ask it for each response before.
func TestAnnouncedAfterAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := unreachable{until: time.Now().Add(30 * time.Second)}
		gets(t, &told, 45, time.Second, func(int) http.Header { return http.Header{"Ratelimit-Policy": {`"a";q=50;w=10`}} })
		if len(told.announcedTo) != 1 || told.announcedTo[0] != 5 || told.tries != 4 {
			t.Errorf("told %v in %d tries, want 4", told.announcedTo, told.tries)
		}
	})
}

// Wrong arguments are errors whether or not the Bucket follows.
func TestAnnouncedArguments(t *testing.T) {
	for _, follow := range []bool{false, true} {
		b := buckettest.New(t, drip.Options{Follow: follow})
		var noContext context.Context
		for want, err := range map[string]error{
			"the rate is -1":  b.Announced(t.Context(), "shop", -1, time.Minute),
			"the rate is NaN": b.Announced(t.Context(), "shop", math.NaN(), time.Minute),
			"the time is 0s":  b.Announced(t.Context(), "shop", 1, 0),
			"name is empty":   b.Announced(t.Context(), "", 1, time.Minute),
			"context is nil":  b.Announced(noContext, "shop", 1, time.Minute),
		} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("follow %v: %v; want %q", follow, err, want)
			}
		}
		if err := b.Announced(t.Context(), "shop", math.Inf(1), time.Minute); err != nil {
			t.Errorf("follow %v: a rate without a bound: %v", follow, err)
		}
	}
}

// Package drip takes the announced rate as a part of the slowest window of calls.
func TestAnnouncedLevel(t *testing.T) {
	for name, c := range map[string]struct {
		limit drip.Limit
		rate  float64
		level float64
	}{
		"half":               {drip.Limit{Size: 20, RefreshRate: 10}, 5, 0.5},
		"more than there is": {drip.Limit{Size: 20, RefreshRate: 10}, 50, 1},
		"none":               {drip.Limit{Size: 20, RefreshRate: 10}, 0, 1},
		"of the slower one":  {drip.Limit{Size: 20, RefreshRate: 10, Windows: []drip.Window{{Size: 240, RefreshInterval: time.Minute}}}, 2, 0.5},
		"of calls":           {drip.Limit{Size: 100, RefreshRate: 1, Unit: Tokens, Windows: []drip.Window{{Size: 8, RefreshInterval: time.Second}}}, 2, 0.25},
		"of no calls":        {drip.Limit{Size: 100, RefreshRate: 1, Unit: Tokens}, 2, 1},
		"a gain above Size":  {drip.Limit{Size: 10, RefreshRate: 1000}, 5, 0.5},
		"next to nothing":    {drip.Limit{Size: 20, RefreshRate: 10}, 0.001, 0.02},
		"less than a float":  {drip.Limit{Size: 20, RefreshRate: 10}, math.SmallestNonzeroFloat64, 0.02},
	} {
		o := Options(c.limit)
		o.Follow = true
		b := buckettest.New(t, o)
		ok(t, b.Announced(t.Context(), "shop", c.rate, time.Minute))
		s, err := b.Inspect(t.Context(), "shop")
		if err != nil || s.Level != c.level {
			t.Errorf("%s: the level is %v, %v; want %v", name, s.Level, err, c.level)
		}
	}
}
