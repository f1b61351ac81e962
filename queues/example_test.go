package queues_test

import (
	"context"
	"fmt"
	"time"

	"github.com/drip-go/drip/queues"
)

// broker is a broker of one's own, which package page and other tools can show.
type broker struct{}

func (broker) Queues() []string { return []string{"orders"} }

func (broker) Look(context.Context, string) (queues.State, error) {
	return queues.State{Time: time.Now(), Queue: queues.Queue{Name: "orders", Messages: 3, Consumers: 2}}, nil
}

func (broker) Dead(context.Context, string, int) ([]queues.Letter, bool, error) {
	return []queues.Letter{{ID: "7", Reason: "too old"}}, false, nil
}

func (broker) Requeue(_ context.Context, _ string, pick func(*queues.Letter) bool) (int, error) {
	if pick(&queues.Letter{ID: "7", Reason: "too old"}) {
		return 1, nil
	}
	return 0, nil
}

// A broker of one's own for package page.
func ExampleBroker() {
	var b queues.Broker = broker{}
	for _, name := range b.Queues() {
		state, err := b.Look(context.Background(), name)
		fmt.Println(state.Queue.Name, state.Queue.Messages, err)
	}
	// Output: orders 3 <nil>
}
