package postgres_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/postgres"
)

// BenchmarkGrowth prints how long an Admit and its Settle take together while many leases of the entity are out: in one
// process, whose statements hold; in two processes in turn, which lock; and with a lease that ends at each Admit, which is
// deleted. The figures are medians.
//
//	go test ./storage/postgres -run '^$' -bench Growth -benchtime 1000x
func BenchmarkGrowth(b *testing.B) {
	if b.N < 2 {
		return
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "leases out\tcompare and set µs\tlock µs\tGetDelay µs\tan ended lease µs\t")
	for _, out := range []int{0, 100, 10_000, 100_000} {
		o := postgres.Options{Schema: newSchema()}
		first := newStorageWith(b, newPool(b, servers.UsePostgres(b).URL(), 4), o)
		second := newStorageWith(b, newPool(b, servers.UsePostgres(b).URL(), 4), o)
		l := *plenty
		l.Lease, l.MaxLease = 3_600_000, 3_600_000
		hold(b, first, &l, out)
		ending := l
		ending.Lease = 1
		fmt.Fprintf(table, "%d\t%d\t%d\t%d\t%d\t\n", out,
			median(b, func() { pair(b, first, &l) }),
			median(b, func() { pair(b, first, &l); pair(b, second, &l) })/2,
			median(b, func() { getDelay(b, first, "shop", &l) }),
			median(b, func() { admit(b, first, &ending) }))
	}
	table.Flush()
}

// hold admits n operations that stay out.
func hold(t testing.TB, s *postgres.Storage, l *decision.Limits, n int) {
	var wg sync.WaitGroup
	for i := range 500 {
		wg.Go(func() {
			for range (n + i) / 500 {
				admit(t, s, l)
			}
		})
	}
	wg.Wait()
}

func admit(t testing.TB, s storage.Atomic, l *decision.Limits) decision.Lease {
	a, err := s.Do(context.Background(), "shop", l, nil, one)
	if err != nil || a.Delay != 0 {
		t.Errorf("Admit = %+v, %v", a, err)
	}
	return a.Lease
}

func pair(t testing.TB, s storage.Atomic, l *decision.Limits) {
	if a := do(t, s, "shop", l, decision.Op{Kind: decision.Settle, Cost: decision.Cost{1}, Lease: admit(t, s, l)}); !a.Found {
		t.Errorf("Settle = %+v", a)
	}
}

// median is how long f takes, in microseconds.
func median(b *testing.B, f func()) int64 {
	times := make([]time.Duration, b.N)
	for i := range times {
		began := time.Now()
		f()
		times[i] = time.Since(began)
	}
	slices.Sort(times)
	return times[len(times)/2].Microseconds()
}
