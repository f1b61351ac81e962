package worker_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/worker"
)

// A queue of any kind: message has one text of its own that survives a postponement.
type message struct{ shop, note string }

// One call takes a message through the limit. The queue's code does what the Outcome says.
func ExampleWorker_Do() {
	bucket, err := drip.New(drip.Options{Size: 1, RefreshRate: 1, RefreshInterval: time.Minute, Start: time.Unix(0, 0)})
	if err != nil {
		log.Fatal(err)
	}
	w, err := worker.New(worker.Options[message]{
		Limiter: bucket,
		Entity:  func(m message) (string, error) { return m.shop, nil },
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range []message{{shop: "a"}, {shop: "a"}} {
		out := w.Do(context.Background(), m, m.note, func(context.Context) error { return nil })
		switch {
		case out.Delay > 0:
			m.note = out.Note.String() // and put m off by out.Delay
			fmt.Println("later")
		case out.Err != nil:
			fmt.Println("failed:", out.Err)
		default:
			fmt.Println("done")
		}
	}
	// Output:
	// done
	// later
}
