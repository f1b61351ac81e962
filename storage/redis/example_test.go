package redis_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/storage/redis"
)

// Every process that makes its bucket like this shares the entities with the others.
func Example() {
	server, err := miniredis.Run() // yours is a real one
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	client := goredis.NewClient(&goredis.Options{Addr: server.Addr()})
	defer client.Close()
	storage, err := redis.New(client, redis.Options{Prefix: "orders:"})
	if err != nil {
		fmt.Println(err)
		return
	}
	bucket, err := drip.New(drip.Options{
		Size: 2, RefreshRate: 1,
		Start:   time.Unix(0, 0), // an entity that Redis does not know has been idle, and is full
		Storage: storage,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		delay, err := bucket.GetDelay(context.Background(), "shop-1")
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println("run:", delay == 0)
	}
	// Output:
	// run: true
	// run: true
	// run: false
}
