package page_test

import (
	"context"
	"log"
	"net/http"

	"github.com/drip-go/drip/page"
	"github.com/drip-go/drip/queues/rabbitmq"
	"github.com/drip-go/drip/storage"
	_ "github.com/drip-go/drip/storage/redis"
)

// userOf is how a program knows its users.
func userOf(r *http.Request) string {
	name, _, _ := r.BasicAuth()
	return name
}

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
