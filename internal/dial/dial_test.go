package dial

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// late is a context whose deadline passes while a connection is made. Its timer is later than the connection's.
type late struct {
	context.Context
	asked atomic.Int64
}

func (l *late) Deadline() (time.Time, bool) {
	if l.asked.Add(1) > 4 { // the last to ask is the connection
		return time.Now().Add(-time.Second), true
	}
	return l.Context.Deadline()
}

// A connection that is not made in time is DeadlineExceeded, whichever timer ends first.
func TestDeadlineOfTheConnection(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := RabbitMQ(&late{Context: ctx}, "amqp://"+silent.Addr().String(), amqp.Config{}, "test"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("RabbitMQ = %v, want DeadlineExceeded", err)
	}
}
