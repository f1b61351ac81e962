package limiter_test

import (
	"context"
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

// process is the input and the report of a process of TestProcesses. It reports its granted units, its beginning and
// its end.
type process struct {
	URL          string
	Key          string
	Limit, Wants float64
	Start        time.Time
	By           string // "consume" or "do"
	Total        float64
	Began, Ended time.Time
}

const processes, workers = 4, 8

// TestProcesses runs 4 processes of 8 goroutines that consume from one limiter as fast as it lets them, until each has
// its wanted units. With a limit of its own for each, as in the SDKs, they would have them at once.
func TestProcesses(t *testing.T) {
	for name, url := range map[string]string{"redis": servers.OwnRedis(t).URL(), "postgres": postgresURL(t)} {
		for _, by := range []string{"consume", "do"} {
			t.Run(name+"/"+by, func(t *testing.T) {
				testProcesses(t, process{URL: url, Key: by, Limit: 300, Wants: 225, By: by})
			})
		}
	}
}

// postgresURL is of a schema that no other test has.
func postgresURL(t *testing.T) string {
	url := fmt.Sprintf("%s&schema=limiter_%x", servers.UsePostgres(t).URL(), rand.Uint64())
	s, err := storage.Open(t.Context(), url)
	must(t, err)
	must(t, s.(*postgres.Storage).CreateSchema(t.Context()))
	must(t, s.(*postgres.Storage).Close())
	return url
}

func testProcesses(t *testing.T, told process) {
	told.Start = time.Now().Add(time.Second)
	reports := contenders.Start(t, processes, told)()
	if t.Failed() {
		return
	}
	total, began, ended := 0.0, reports[0].Began, reports[0].Ended
	for _, r := range reports {
		total += r.Total
		if r.Began.Before(began) {
			began = r.Began
		}
		if r.Ended.After(ended) {
			ended = r.Ended
		}
	}
	took := ended.Sub(began).Seconds()
	t.Logf("%.0f units in %.2f s", total, took)
	const duration, last = 1, 3
	if most := told.Limit*(took+duration) + last; total > most {
		t.Errorf("granted %v units in %v s, allowed are %v", total, took, most)
	}
}

func contend(p *process) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := storage.Open(ctx, p.URL)
	if err != nil {
		return err
	}
	l, err := limiter.New(limiter.Options{Limit: p.Limit, Storage: s, Key: p.Key})
	if err != nil {
		return err
	}
	time.Sleep(time.Until(p.Start))
	p.Began = time.Now()
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
				p.Total += units
			}
			goesOn := func() bool {
				mu.Lock()
				defer mu.Unlock()
				return p.Total < p.Wants && failed == nil
			}
			for goesOn() {
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
				if err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	p.Ended = time.Now()
	return failed
}
