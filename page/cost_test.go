package page

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
	"github.com/drip-go/drip/storage/redis"
)

// BenchmarkManyEntities looks at 100,000 entities for a minute and a half, as the page refreshes. It reports how long views took, when
// all entities were read, and the part of a core that Redis spent. Run it with -benchtime 1x.
func BenchmarkManyEntities(b *testing.B) {
	const many = 100_000
	options, err := goredis.ParseURL(servers.OwnRedis(b).URL())
	ok(b, err)
	client := goredis.NewClient(options)
	defer client.Close()
	s, err := redis.New(client, redis.Options{})
	ok(b, err)
	o := limits(s)
	store(b, o, many)
	for b.Loop() {
		ok(b, client.ConfigResetStat(b.Context()).Err())
		h := newSite(b, Options{Storage: s, Limits: &o})
		begin, cpu := time.Now(), processor(b, client)
		var first, slowest, complete time.Duration
		for n := 0; time.Since(begin) < 90*time.Second; n++ {
			address := []string{"", "?by=use", "?q=-0042", "?by=name&page=1999", "entity?name=shop-00042"}[n%5]
			at := time.Now()
			status, text := h.get(b, address)
			took := time.Since(at)
			switch {
			case status != 200:
				b.Fatal(address, status, text)
			case n == 0:
				first = took
			case complete == 0 && strings.Contains(text, "<strong>100000</strong> entities") && !strings.Contains(text, "so far"):
				complete = time.Since(begin)
			}
			slowest = max(slowest, took)
			time.Sleep(time.Second)
		}
		if complete == 0 {
			b.Error("not everything was read")
		}
		took := time.Since(begin).Seconds()
		b.ReportMetric(first.Seconds()*1000, "first-ms")
		b.ReportMetric(slowest.Seconds()*1000, "slowest-ms")
		b.ReportMetric(complete.Seconds(), "complete-s")
		b.ReportMetric(100*commands(b, client).Seconds()/took, "commands-%")
		b.ReportMetric(100*(processor(b, client)-cpu).Seconds()/took, "process-%")
	}
}

// slowLister takes some time for each entry of its list.
type slowLister struct {
	*memory.Storage
	each time.Duration

	busy  atomic.Int64 // with lists
	reads atomic.Int64
}

func (s *slowLister) List(ctx context.Context, f func(storage.Entry) error) error {
	var all []storage.Entry
	err := s.Storage.List(ctx, func(e storage.Entry) error {
		e.State = e.State.Copy()
		all = append(all, e)
		return nil
	})
	for _, e := range all {
		if err != nil {
			break
		}
		time.Sleep(s.each)
		s.busy.Add(int64(s.each))
		err = f(e)
	}
	return err
}

func (s *slowLister) Read(ctx context.Context, key string) (storage.Entry, error) {
	s.reads.Add(1)
	return s.Storage.Read(ctx, key)
}

// The first view does not wait for the list. An open page lists for a hundredth of the time, and a closed one not at all.
func TestIndexRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowLister{Storage: memory.New(), each: 5 * time.Millisecond}
		o := limits(s.Storage)
		const many = 500
		store(t, o, many)
		h := newSite(t, Options{Storage: s, Limits: &o})
		begin := time.Now()
		h.get(t, "")
		if took, reads := time.Since(begin), s.reads.Load(); took > 150*time.Millisecond || reads == 0 || reads > rows {
			t.Errorf("the first view took %v and %d reads, want at most 150 ms and %d", took, reads, rows)
		}
		time.Sleep(10 * time.Second)
		_, text := h.get(t, "")
		has(t, text, "<strong>500</strong> entities")
		if strings.Contains(text, "so far") {
			t.Error("not everything was read in four times the time that it takes")
		}
		for time.Since(begin) < time.Hour {
			time.Sleep(kept / 2)
			h.get(t, "")
		}
		busy := time.Duration(s.busy.Load())
		if most := time.Since(begin)/100 + many*s.each; busy > most || busy < most/2 { // it rests after a list
			t.Errorf("it listed for %v, want at most %v and at least half of that", busy, most)
		}
		time.Sleep(20 * time.Minute) // the pass under way ends
		before := s.busy.Load()
		time.Sleep(time.Hour)
		if after := s.busy.Load(); after != before {
			t.Errorf("it listed for %v while nobody looked", time.Duration(after-before))
		}
		h.Close()
	})
}

// The question before an action on all entities tells no number while the list is still being read.
func TestSureBeforeTheListIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		admit(t, s, "eu-1", 1)
		admit(t, s, "us-1", 1)
		h := newSite(t, Options{Storage: &slowLister{Storage: s, each: 30 * time.Second}, Allow: allow})
		if _, text := h.get(t, "sure?do=pause&all=yes&for=10m"); strings.Contains(text, "That is 0 entities of 0.") {
			t.Error("the question tells of none, although two are stored and will be paused")
		}
		time.Sleep(2 * time.Minute)
		_, text := h.get(t, "sure?do=pause&all=yes&for=10m")
		has(t, text, "That is 2 entities of 2.")
		time.Sleep(5 * time.Minute) // nobody looks any more
		h.Close()
	})
}

// store makes decisions about n entities.
func store(t testing.TB, o drip.Options, n int) {
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
		ok(t, <-done)
	}
}

// commands is how long the server was busy with commands, by its own count.
func commands(t testing.TB, client *goredis.Client) (busy time.Duration) {
	t.Helper()
	stats, err := client.Info(t.Context(), "commandstats").Result()
	ok(t, err)
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
func processor(t testing.TB, client *goredis.Client) (d time.Duration) {
	t.Helper()
	info, err := client.Info(t.Context(), "cpu").Result()
	ok(t, err)
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if s, err := strconv.ParseFloat(value, 64); err == nil && (name == "used_cpu_user" || name == "used_cpu_sys") {
			d += time.Duration(s * float64(time.Second))
		}
	}
	return d
}
