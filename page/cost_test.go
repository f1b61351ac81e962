package page

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage/redis"
)

// With 100,000 entities the first view comes at once. An open page takes less than a hundredth of a core of Redis,
// although it reads everything once in the first minute. DRIP_LONG=1 watches for three minutes instead of half as long.
func TestManyEntities(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute and a half")
	}
	const many = 100_000
	watch := 90 * time.Second
	if os.Getenv("DRIP_LONG") != "" {
		watch = 3 * time.Minute
	}
	options, err := goredis.ParseURL(servers.OwnRedis(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	client := goredis.NewClient(options)
	defer client.Close()
	s, err := redis.New(client, redis.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := limits(s)
	store(t, o, many)
	if err := client.ConfigResetStat(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	begin, cpu := time.Now(), processor(t, client)
	h := newSite(t, Options{Storage: s, Limits: &o})
	status, text := h.get(t, "")
	first := time.Since(begin)
	if status != 200 || !strings.Contains(text, ">shop-") {
		t.Errorf("the first view is %d:\n%s", status, text)
	}
	var slowest time.Duration
	complete := time.Duration(0)
	for n := 0; time.Since(begin) < watch; n++ { // as the page refreshes
		address := []string{"", "?by=use", "?q=-0042", "?by=name&page=1999", "entity?name=shop-00042"}[n%5]
		at := time.Now()
		if status, text := h.get(t, address); status != 200 {
			t.Fatal(address, status, text)
		} else if complete == 0 && strings.Contains(text, "<strong>100000</strong> entities") && !strings.Contains(text, "so far") {
			complete = time.Since(begin)
		}
		if d := time.Since(at); d > 300*time.Millisecond {
			t.Logf("%q at %v took %v", address, time.Since(begin), d)
		}
		slowest = max(slowest, time.Since(at))
		time.Sleep(time.Second)
	}
	took := time.Since(begin)
	busy := commands(t, client)
	cpu = processor(t, client) - cpu
	t.Logf("first view %v, all read after %v, slowest view %v; in %v Redis was busy with commands for %v (%.2f %%), its process for %v (%.2f %%)",
		first, complete, slowest, took.Round(time.Second), busy, 100*busy.Seconds()/took.Seconds(), cpu, 100*cpu.Seconds()/took.Seconds())
	for range 2 { // another try or two on a machine that is busy with other things
		if first > 300*time.Millisecond {
			again := newSite(t, Options{Storage: s, Limits: &o})
			begin := time.Now()
			again.get(t, "")
			first = min(first, time.Since(begin))
		}
	}
	if first > 300*time.Millisecond {
		t.Errorf("the first view took %v, want at most 300 ms", first)
	}
	if complete == 0 {
		t.Error("not everything was read")
	}
	// Commands are timed by the clock, so others on the machine make them longer; the process' time has the network besides.
	if share := min(busy, cpu).Seconds() / took.Seconds(); share > 0.01 {
		t.Errorf("Redis was busy for %.2f %% of the time, want at most 1 %%", 100*share)
	}
}

// store makes decisions about n entities.
func store(t *testing.T, o drip.Options, n int) {
	t.Helper()
	b := buckettest.New(t, o)
	done := make(chan error)
	const together = 64
	for w := range together {
		go func() {
			for i := w; i < n; i += together {
				for range 1 + i%7 {
					if _, err := b.Admit(context.Background(), fmt.Sprintf("shop-%05d", i), drip.Request{}); err != nil {
						done <- err
						return
					}
				}
			}
			done <- nil
		}()
	}
	for range together {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// commands is how long the server was busy with commands, by its own count.
func commands(t *testing.T, client *goredis.Client) (busy time.Duration) {
	t.Helper()
	stats, err := client.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(stats) {
		_, rest, ok := strings.Cut(line, ",usec=")
		usec, _, _ := strings.Cut(rest, ",")
		if n, err := strconv.Atoi(usec); ok && err == nil {
			busy += time.Duration(n) * time.Microsecond
		}
	}
	return busy
}

// processor is the time that the server's process has had.
func processor(t *testing.T, client *goredis.Client) (d time.Duration) {
	t.Helper()
	info, err := client.Info(t.Context(), "cpu").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if s, err := strconv.ParseFloat(value, 64); err == nil && (name == "used_cpu_user" || name == "used_cpu_sys") {
			d += time.Duration(s * float64(time.Second))
		}
	}
	return d
}
