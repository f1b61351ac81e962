// Package queues describes the queues of a broker for tools: the work queues of consumers, the waiting and due
// messages, and the dead letters. Package queues/rabbitmq implements it for package consumer. The command drip and
// package page show it.
package queues

import (
	"context"
	"time"
)

// Broker is a broker with work queues. Implementations are safe for concurrent use. Their errors name no password.
type Broker interface {
	// Queues returns the names of the work queues, in the order in which tools show them.
	Queues() []string

	// Look returns the state of a work queue and of its other queues. It changes nothing.
	Look(ctx context.Context, queue string) (State, error)

	// Dead reads the first dead letters of a work queue, at most most of them, and leaves them where they are. more
	// reports whether there are others.
	Dead(ctx context.Context, queue string, most int) (letters []Letter, more bool, err error)

	// Requeue puts the dead letters for which pick returns true back to be handled, and returns how many it has put back.
	// After an error some may be back already. None is lost, and one may be in both places.
	Requeue(ctx context.Context, queue string, pick func(*Letter) bool) (int, error)
}

// State is the state of a work queue and of its other queues.
type State struct {
	Time     time.Time // by this machine's clock
	Queue    Queue     // the work queue
	Due      *Queue    // the queue of messages back from the delay queues; nil if it does not exist
	Dead     *Queue    // the queue of dead letters; nil if it does not exist
	Waiting  int       // number of messages in delay queues
	Delays   []Delay   // delay queues with messages in them, the first to leave first
	Existing int       // number of delay queues, empty ones included
}

// Queue is a queue that exists.
type Queue struct {
	Name      string // its name in the broker
	Messages  int    // number of messages that no consumer has in hand
	Consumers int    // number of consumers
}

// Delay is a delay queue. Its messages leave it together.
type Delay struct {
	Name     string    // its name in the broker
	Messages int       // number of messages in it
	Expires  time.Time // when they leave it
}

// Letter is a dead letter.
type Letter struct {
	ID            string        // a hash of its content; equal letters have the same ID
	MessageID     string        // the message ID that its publisher has set
	Reason        string        // why it was given up: "failed", "too old", …; a broker's own word, as "delivery_limit", if the consumer gave none
	Error         string        // the error of its last attempt
	Attempts      int           // how often its handler has failed
	Postponements int           // how often it was postponed, by the limit or by its handler
	Age           time.Duration // from its first delivery until it was given up
	Exchange      string        // the exchange of its first publishing
	RoutingKey    string        // the routing key of its first publishing
	Size          int           // size of the body, in bytes
	Body          []byte        // the first bytes of the body, at most MostBody
}

// MostBody is the most bytes of its body that a Letter has.
const MostBody = 300
