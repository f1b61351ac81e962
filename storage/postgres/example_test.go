package postgres_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/storage/postgres"
)

// Every process that makes its bucket like this shares the entities with the others.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres://localhost/shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	storage, err := postgres.New(pool, postgres.Options{Schema: "limits"})
	if err != nil {
		log.Fatal(err)
	}
	defer storage.Close()
	if err := storage.CreateSchema(ctx); err != nil { // or postgres.SchemaSQL("limits") in your migrations
		log.Fatal(err)
	}
	bucket, err := drip.New(drip.Options{
		Size: 2, RefreshRate: 1, // an entity that is not stored has been idle, and is full
		Storage: storage,
	})
	if err != nil {
		log.Fatal(err)
	}
	delay, err := bucket.GetDelay(ctx, "shop-1")
	if err != nil {
		log.Fatal(err)
	}
	log.Print("run: ", delay == 0)
}

// The tables, for a migration.
func ExampleSchemaSQL() {
	fmt.Println(strings.Contains(postgres.SchemaSQL("limits"), "limits"))
	// Output: true
}
