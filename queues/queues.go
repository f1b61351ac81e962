// Package queues is what tools show of a broker: the work queues of consumers, what waits and is due, and the dead
// letters. Package queues/rabbitmq is the one for package consumer; the command drip and package page show it.
package queues

import (
	"context"
	"time"
)

// Broker is a broker with work queues. Implementations are safe for concurrent use. Their errors name no password.
type Broker interface {
	// Queues are the names of the work queues, in the order in which they are shown.
	Queues() []string

	// Look tells what is in a work queue and in those that belong to it. Nothing is changed.
	Look(ctx context.Context, queue string) (State, error)

	// Dead reads the first dead letters of a work queue, at most most of them, and leaves them where they are. more tells
	// that there are others.
	Dead(ctx context.Context, queue string, most int) (letters []Letter, more bool, err error)

	// Requeue puts those dead letters back to be handled for which pick returns true, and returns how many they are. After
	// an error some may be back already; none is lost, and one may be in both places.
	Requeue(ctx context.Context, queue string, pick func(*Letter) bool) (int, error)
}

// State is what is in a work queue and in those that belong to it.
type State struct {
	Time     time.Time // by this machine's clock
	Queue    Queue     // the work queue
	Due      *Queue    // what is back from the delay queues; nil if there is none
	Dead     *Queue    // the dead letters; nil if there is none
	Waiting  int       // messages in delay queues
	Delays   []Delay   // delay queues with messages in them, the first to leave first
	Existing int       // delay queues, with those that are empty
}

// Queue is a queue that exists.
type Queue struct {
	Name      string // as the broker has it
	Messages  int    // that are not in some consumer's hand
	Consumers int    // how many consume it
}

// Delay is a delay queue. Its messages leave it together.
type Delay struct {
	Name     string    // as the broker has it
	Messages int       // in it
	Expires  time.Time // when they leave it
}

// Letter is a dead letter.
type Letter struct {
	ID            string        // of what it holds; two alike have the same one
	MessageID     string        // as its publisher has set it
	Reason        string        // why it was given up: "failed", "too old", …
	Error         string        // of its last attempt
	Attempts      int           // how often its handler has failed
	Postponements int           // how often the limit postponed it
	Age           time.Duration // from its first postponement until it was given up
	Exchange      string        // as it was published first
	RoutingKey    string        // likewise
	Size          int           // of the body, in bytes
	Body          []byte        // its first bytes, at most MostBody
}

// MostBody is how many bytes of its body a Letter has at most.
const MostBody = 300
