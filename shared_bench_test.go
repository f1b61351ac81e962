package drip_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

func BenchmarkShared(b *testing.B) {
	for n, shared := range []map[string]drip.Limit{nil, {"app": {RefreshRate: 1 << 30}}, {"app": {RefreshRate: 1 << 30}, "orders": {RefreshRate: 1 << 30}}} {
		b.Run(fmt.Sprint(n+1, " limits"), func(b *testing.B) {
			bucket := buckettest.New(b, drip.Options{Size: 1 << 30, RefreshRate: 1 << 30, Shared: shared})
			ids := make([]string, 1000)
			for i := range ids {
				ids[i] = fmt.Sprint("shop-", i)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				id := ids[i%1000]
				a, err := bucket.Admit(context.Background(), id, drip.Request{})
				if err != nil || a.Delay != 0 {
					b.Fatal(a, err)
				}
				if err := bucket.Settle(context.Background(), id, a.Lease, 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
