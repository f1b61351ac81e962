package worker_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
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

// newWorker makes a worker of messages that are their entity.
func newWorker(o drip.Options) *worker.Worker[string] {
	o.Start = time.Unix(0, 0)
	bucket, err := drip.New(o)
	if err != nil {
		log.Fatal(err)
	}
	w, err := worker.New(worker.Options[string]{
		Limiter:  bucket,
		Entity:   func(shop string) (string, error) { return shop, nil },
		Attempts: 3,
		Logger:   slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	return w
}

// The errors of an operation, and what becomes of its message.
func ExampleOutcome() {
	for _, err := range []error{
		nil,
		errors.New("connection reset"),
		worker.Permanent(errors.New("no such order")),
		worker.Later(10*time.Second, errors.New("the report is not ready")),
		worker.Throttled(30*time.Second, errors.New("429 Too Many Requests")),
	} {
		w := newWorker(drip.Options{})
		out := w.Do(context.Background(), "shop-1", "", func(context.Context) error { return err })
		fmt.Println(out.Kind, out.Delay > 0, out.Note.Attempts)
	}
	// Output:
	// done false 0
	// retried true 1
	// given up false 1
	// refused true 0
	// refused true 0
}

// The provider has refused a call because of a limit that entities share.
func ExampleThrottledShared() {
	w := newWorker(drip.Options{Shared: map[string]drip.Limit{"app": {Size: 50}}})
	out := w.Do(context.Background(), "shop-1", "", func(context.Context) error {
		return worker.ThrottledShared("app", 5*time.Second, nil)
	})
	fmt.Println(out.Kind)
	out = w.Do(context.Background(), "shop-2", "", func(context.Context) error { return nil })
	fmt.Println(out.Kind)
	// Output:
	// refused
	// postponed
}

// An operation reports its real cost.
func ExampleOperationOf() {
	w := newWorker(drip.Options{})
	out := w.Do(context.Background(), "shop-1", "", func(ctx context.Context) error {
		op := worker.OperationOf(ctx)
		op.SetCost(3)
		fmt.Println(op.Entity, op.Attempts, op.Postponements)
		return nil
	})
	fmt.Println(out.Kind)
	// Output:
	// shop-1 0 0
	// done
}

// The note travels with the message as a text.
func ExampleParseNote() {
	w := newWorker(drip.Options{})
	out := w.Do(context.Background(), "shop-1", "", func(context.Context) error { return errors.New("connection reset") })
	header := out.Note.String() // a header of the queue's message
	fmt.Println(worker.ParseNote(header).Attempts, worker.ParseNote("no note").Attempts)
	// Output: 1 0
}

// A consumer that ends lets its handlers end first.
func ExampleDrain() {
	ctx, stop := context.WithCancel(context.Background())
	hands, end := worker.Drain(ctx)
	stop()
	fmt.Println(ctx.Err(), hands.Err()) // no new messages; those in hand go on
	end()
	<-hands.Done()
	// Output: context canceled <nil>
}
