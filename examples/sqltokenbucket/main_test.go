package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
)

func TestMain(m *testing.M) { os.Exit(servers.Main(m)) }

func connect(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), url)
	oktest.OK(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// newFunction has a schema of its own, and a clock that shows at, in seconds.
func newFunction(t *testing.T, at *float64) *function {
	t.Helper()
	f, err := open(t.Context(), connect(t, servers.UsePostgres(t).URL()), fmt.Sprintf("test_%x", rand.Uint64()))
	oktest.OK(t, err)
	f.clock = func() time.Time { return time.UnixMicro(1_800_000_000_000_000 + int64(*at*1e6)) }
	return f
}

func request(t *testing.T, f *function, id string, rate, window int) int {
	t.Helper()
	left, wait, err := f.request(context.Background(), id, rate, window)
	if err != nil || (left < 0) != (wait > 0) {
		t.Fatalf("request = %d, %v, %v", left, wait, err)
	}
	return left
}

// The session that the series shows: ten tokens at once, none, and after four seconds four more.
func TestAnswers(t *testing.T) {
	var at float64
	f := newFunction(t, &at)
	var got []int
	for range 13 {
		got = append(got, request(t, f, "user1", 1, 10))
	}
	at += 4
	for range 5 {
		got = append(got, request(t, f, "user1", 1, 10))
	}
	if want := "[9 8 7 6 5 4 3 2 1 0 -1 -1 -1 3 2 1 0 -1]"; fmt.Sprint(got) != want {
		t.Errorf("got  %v\nwant %s", got, want)
	}
	if left := request(t, f, "user2", 1, 10); left != 9 {
		t.Errorf("another user has %d left, want 9", left)
	}
	at += 1000
	if left := request(t, f, "user1", 1, 10); left != 9 {
		t.Errorf("after a long time %d are left, want 9", left)
	}
	at -= 500 // a clock that steps back
	if left := request(t, f, "user1", 1, 10); left != 8 {
		t.Errorf("after the clock was set back %d are left, want 8", left)
	}
	for _, wrong := range [][2]int{{0, 1}, {1, 0}, {-1, -1}, {1 << 40, 1 << 40}} {
		if _, _, err := f.request(t.Context(), "user1", wrong[0], wrong[1]); err == nil {
			t.Errorf("request with %v succeeds", wrong)
		}
	}
	if left := request(t, f, "many", 1_000_000, 3600); left != 3_599_999_999 {
		t.Errorf("%d are left of 3,600,000,000", left)
	}
}

// Polling without a token left costs only reads, and the poller gets the next token like any other caller.
func TestDenialWritesNothing(t *testing.T) {
	pool := connect(t, servers.UsePostgres(t).URL())
	schema := fmt.Sprintf("test_%x", rand.Uint64())
	f, err := open(t.Context(), pool, schema)
	oktest.OK(t, err)
	now := time.UnixMilli(1_800_000_000_000)
	f.clock = func() time.Time { return now }
	version := func() (v string) {
		oktest.OK(t, pool.QueryRow(t.Context(), "select xmin::text || ctid::text from "+schema+".entity").Scan(&v))
		return v
	}
	request(t, f, "user1", 1, 1)
	before := version()
	for range 60 {
		now = now.Add(10 * time.Millisecond)
		if left := request(t, f, "user1", 1, 1); left != -1 {
			t.Errorf("%d are left", left)
		}
	}
	if version() != before {
		t.Error("a denial wrote the row")
	}
	now = now.Add(400 * time.Millisecond)
	if left := request(t, f, "user1", 1, 1); left != 0 || version() == before {
		t.Errorf("a second later %d are left, want 0", left)
	}
}

// In no time more is granted than the bucket holds, what the rate brings, and one refill, whenever that begins.
func TestBound(t *testing.T) {
	const seconds = 3
	for _, rate := range []int{1, 3, 7, 9, 10, 101} {
		at := 0.9985
		f := newFunction(t, &at)
		tokens, _ := refill(rate)
		var granted []float64 // when
		for end := at + seconds; at < end; at += 0.4 / float64(rate) {
			if request(t, f, "user1", rate, 1) >= 0 {
				granted = append(granted, at)
			}
		}
		if least := 0.98 * float64(rate*seconds); float64(len(granted)) < least {
			t.Errorf("%d a second: %d granted, want %.1f at the least", rate, len(granted), least)
		}
		for i, from := range granted {
			for j, to := range granted[i:] {
				if most := float64(rate+tokens) + float64(rate)*(to-from); float64(j+1) > most+1e-6 {
					t.Fatalf("%d a second: %d granted in %v s, want %.1f at the most", rate, j+1, to-from, most)
				}
			}
		}
	}
	for _, c := range []struct{ rate, tokens, ms int }{{1, 1, 1000}, {2, 1, 500}, {3, 1, 334}, {7, 1, 143}, {60, 3, 50}, {999, 90, 91}, {1000, 1, 1}, {math.MaxInt32, 2147483, 1}} {
		if tokens, every := refill(c.rate); tokens != c.tokens || every != time.Duration(c.ms)*time.Millisecond {
			t.Errorf("%d a second: %d each %v, want %+v", c.rate, tokens, every, c)
		}
	}
}

func TestRun(t *testing.T) {
	var out strings.Builder
	id, rate, window, err := arguments([]string{fmt.Sprintf("user %x", rand.Uint64()), "1", "1"})
	oktest.OK(t, err)
	for range 2 {
		oktest.OK(t, run(t.Context(), &out, servers.UsePostgres(t).URL(), 0, id, rate, window))
	}
	if want := regexp.MustCompile(`^\d\d:\d\d:\d\d 0\n\d\d:\d\d:\d\d (0|-1, the next one in \S+)\n$`); !want.MatchString(out.String()) {
		t.Errorf("run printed\n%s", out.String())
	}
	for _, args := range [][]string{{}, {"a", "b"}, {"a", "1", "2", "3"}} {
		if _, _, _, err := arguments(args); err == nil {
			t.Errorf("arguments %q are taken", args)
		}
	}
	if id, rate, window, err := arguments([]string{"a"}); id != "a" || rate != 2 || window != 60 || err != nil {
		t.Errorf("the defaults are %d and %d, %v", rate, window, err)
	}
}
