package redis_test

import (
	"context"
	"fmt"

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
		Size: 2, RefreshRate: 1, // an entity that is not stored has been idle, and is full
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

// A cluster, or servers behind Sentinel, are a client of one's own.
func ExampleNew() {
	client := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{"node-1:6379", "node-2:6379"}})
	defer client.Close()
	storage, err := redis.New(client, redis.Options{Prefix: "orders:"}) // connects with the first call
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = drip.New(drip.Options{Size: 40, RefreshRate: 2, Storage: storage})
	fmt.Println(err)
	// Output: <nil>
}
