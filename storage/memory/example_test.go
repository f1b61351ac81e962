package memory_test

import (
	"context"
	"fmt"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/storage/memory"
)

// Two buckets of one process that share their entities. A Bucket without a Storage makes one of its own.
func Example() {
	ctx := context.Background()
	s := memory.New()
	options := drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: 24 * time.Hour, Start: time.Unix(0, 0), Storage: s}
	for range 2 {
		bucket, err := drip.New(options)
		if err != nil {
			fmt.Println(err)
			return
		}
		a, err := bucket.Admit(ctx, "shop-1", drip.Request{})
		fmt.Println("run:", a.Delay == 0, err)
	}
	fmt.Println(s.Len(), "entity is stored")
	// Output:
	// run: true <nil>
	// run: false <nil>
	// 1 entity is stored
}
