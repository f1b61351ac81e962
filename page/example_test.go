package page_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/drip-go/drip/page"
	"github.com/drip-go/drip/queues/rabbitmq"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
	_ "github.com/drip-go/drip/storage/redis"
)

// userOf is how a program knows its users.
func userOf(r *http.Request) string {
	name, _, _ := r.BasicAuth()
	return name
}

// The page in a program's own mux, with the queues of its consumers.
func ExampleHandler() {
	store, err := storage.Open(context.Background(), "redis://localhost:6379/0")
	if err != nil {
		log.Fatal(err)
	}
	broker, err := rabbitmq.New("amqp://localhost/", "orders", "invoices")
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	mux := http.NewServeMux()
	h, err := page.Handler(page.Options{
		Storage: store, Broker: broker,
		Allow: func(r *http.Request, a page.Action) (who string, allowed bool) {
			who = userOf(r)
			return who, who == "ann"
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close()
	mux.Handle("/drip/", h)
	log.Fatal(http.ListenAndServe("127.0.0.1:8080", mux))
}

// Everybody sees the page, and only some may change anything.
func ExampleOptions_allow() {
	allow := func(r *http.Request, a page.Action) (who string, allowed bool) {
		who = userOf(r)
		return who, who == "ann" && a.Do != page.Reset
	}
	h, err := page.Handler(page.Options{Storage: memory.New(), Allow: allow})
	if err != nil {
		log.Fatal(err)
	}
	defer h.Close()
	server := httptest.NewServer(h)
	defer server.Close()

	response, err := http.Get(server.URL)
	if err != nil {
		log.Fatal(err)
	}
	defer response.Body.Close()
	fmt.Println(response.Status)
	fmt.Println(page.Action{Do: page.Pause, Entity: "shop-1", For: 10 * time.Minute})
	// Output:
	// 200 OK
	// pause "shop-1" for 10m
}
