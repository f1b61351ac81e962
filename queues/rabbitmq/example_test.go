package rabbitmq_test

import (
	"context"
	"fmt"
	"log"

	"github.com/drip-go/drip/queues"
	"github.com/drip-go/drip/queues/rabbitmq"
)

// The broker counts the messages in the queues of the consumers of "orders". New connects to nothing; the first call does.
func ExampleNew() {
	broker, err := rabbitmq.New("amqp://localhost/", "orders", "invoices")
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	fmt.Println(broker.Queues())
	// Output: [orders invoices]
}

func ExampleBroker_Look() {
	broker, err := rabbitmq.New("amqp://localhost/", "orders")
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	state, err := broker.Look(context.Background(), "orders")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(state.Queue.Messages, "messages, and", state.Waiting, "in", len(state.Delays), "delay queues")
}

// Dead letters that were given up for one reason are put back.
func ExampleBroker_Requeue() {
	ctx := context.Background()
	broker, err := rabbitmq.New("amqp://localhost/", "orders")
	if err != nil {
		log.Fatal(err)
	}
	defer broker.Close()
	letters, more, err := broker.Dead(ctx, "orders", 20)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(letters), "dead letters; others:", more)
	n, err := broker.Requeue(ctx, "orders", func(l *queues.Letter) bool { return l.Reason == "too old" })
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(n, "were put back")
}
