package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/drip-go/drip/internal/contenders"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/limiter"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/postgres"
	_ "github.com/drip-go/drip/storage/redis"
)

func TestMain(m *testing.M) {
	contenders.Main(contend)
	os.Exit(servers.Main(m))
}

// process is what a process of TestProcesses is told, and what it reports: what it was granted in each tenth of a
// second since Start, and how much that was.
type process struct {
	URL     string
	Key     string
	Limit   float64
	Start   time.Time
	Lasts   time.Duration
	By      string // "consume" or "do"
	Granted []float64
	Total   float64
}

const processes, workers = 4, 8

// TestProcesses has 4 processes of 8 goroutines consume from one limiter as fast as they are let, where each process
// would have a limit of its own with the SDKs.
func TestProcesses(t *testing.T) {
	for name, url := range map[string]string{"redis": servers.OwnRedis(t).URL(), "postgres": postgresURL(t)} {
		for _, by := range []string{"consume", "do"} {
			t.Run(name+"/"+by, func(t *testing.T) {
				testProcesses(t, process{URL: url, Key: by, Limit: 300, Lasts: 2 * time.Second, By: by})
			})
		}
	}
}

// postgresURL is of a schema that no other test has.
func postgresURL(t *testing.T) string {
	url := fmt.Sprintf("%s&schema=limiter_%x", servers.UsePostgres(t).URL(), rand.Uint64())
	s, err := storage.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.(*postgres.Storage).CreateSchema(t.Context()); err != nil {
		t.Fatal(err)
	}
	must(t, s.(*postgres.Storage).Close())
	return url
}

func testProcesses(t *testing.T, told process) {
	told.Start = time.Now().Add(time.Second)
	reports := contenders.Start(t, processes, told)()
	if t.Failed() {
		return
	}
	var total, least float64
	var granted []float64
	least = reports[0].Total
	for _, r := range reports {
		total += r.Total
		least = min(least, r.Total)
		for i, units := range r.Granted {
			for i >= len(granted) {
				granted = append(granted, 0)
			}
			granted[i] += units
		}
	}
	second, in := 0.0, 0.0
	for i, units := range granted {
		in += units
		if i >= 10 {
			in -= granted[i-10]
		}
		second = max(second, in)
	}
	t.Logf("%.0f units in %v, %.1f a second; at most %.0f in a second; the least served process got %.2f of the mean",
		total, told.Lasts, total/told.Lasts.Seconds(), second, least*processes/total)
	const duration, last = 1, 3
	if most := told.Limit*(told.Lasts.Seconds()+duration) + last; total > most {
		t.Errorf("granted %v units, allowed are %v", total, most)
	}
	// Half a second more: the processes read their clocks some time after they were let. With a limit for each it would be
	// four times as many.
	if most := told.Limit*(1.5+duration) + last; second > most {
		t.Errorf("granted %v units in a second, allowed are %v", second, most)
	}
	if total < 0.8*told.Limit*told.Lasts.Seconds() {
		t.Errorf("granted %v units, expected about %v", total, told.Limit*told.Lasts.Seconds())
	}
	if least*processes < total/3 {
		t.Errorf("the least served process got %v of %v", least, total)
	}
}

// contend is what one of the processes does.
func contend(p *process) error {
	s, err := storage.Open(context.Background(), p.URL)
	if err != nil {
		return err
	}
	l, err := limiter.New(limiter.Options{Limit: p.Limit, Storage: s, Key: p.Key})
	if err != nil {
		return err
	}
	time.Sleep(time.Until(p.Start))
	ctx, cancel := context.WithDeadline(context.Background(), p.Start.Add(p.Lasts))
	defer cancel()
	var (
		mu     sync.Mutex
		failed error
		wg     sync.WaitGroup
	)
	for worker := range workers {
		wg.Go(func() {
			units := float64(1 + worker%3)
			grant := func() {
				mu.Lock()
				defer mu.Unlock()
				tenth := int(time.Since(p.Start) / (100 * time.Millisecond))
				for tenth >= len(p.Granted) {
					p.Granted = append(p.Granted, 0)
				}
				p.Granted[tenth] += units
				p.Total += units
			}
			for ctx.Err() == nil {
				var err error
				if p.By == "consume" {
					if _, err = l.Consume(ctx, units); err == nil {
						grant()
					}
				} else {
					err = l.Do(ctx, func(context.Context) (float64, error) {
						grant()
						time.Sleep(5 * time.Millisecond)
						return units, nil
					})
				}
				if err != nil && ctx.Err() == nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	return failed
}
