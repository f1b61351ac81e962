package consumer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Deliveries that stall are logged once, and when they go on.
func TestStallsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const stalls, goesOn = "no message has ended for a while, and as many are in hand as may be", "messages go on"
		var log lines
		b := newStrict(t, 3)
		b.wanted[1] = true
		from := newSettling(b, 1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			watchStalls(ctx, from, 2, slog.New(&log), func() (int, int) { return 0, 0 })
		}()
		first := from.received(1)
		time.Sleep(time.Hour)
		if n := log.count(stalls); n != 0 {
			t.Errorf("a place is free, and %d stalls were logged", n)
		}
		second := from.received(2)
		time.Sleep(time.Hour)
		must(t, from.ack(first))
		from.received(3)
		time.Sleep(stalledAfter / 2)
		if log.count(stalls) != 1 || log.count(goesOn) != 1 {
			t.Errorf("a stall of an hour was logged %d times, its end %d times", log.count(stalls), log.count(goesOn))
		}
		time.Sleep(time.Hour)
		must(t, from.giveBack(second))
		time.Sleep(time.Minute)
		if log.count(stalls) != 2 || log.count(goesOn) != 2 {
			t.Errorf("after a second one %d stalls were logged, %d ends", log.count(stalls), log.count(goesOn))
		}
		cancel()
		<-ended
	})
}

// A line says a duration as people write it, also in JSON.
func TestDurationsAreLoggedAsText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from := newSettling(newStrict(t, 1), 1)
		from.received(1)
		ctx, cancel := context.WithTimeout(t.Context(), 2*stalledAfter)
		defer cancel()
		var log bytes.Buffer
		watchStalls(ctx, from, 1, slog.New(slog.NewJSONHandler(&log, nil)), func() (int, int) { return 1, 0 })
		var line struct{ After string }
		if err := json.Unmarshal(log.Bytes(), &line); err != nil || line.After != "30s" {
			t.Error(err, log.String())
		}
	})
}

// The log says when the broker accepts no messages, when a delay queue was deleted and when a policy throws messages out of
// one. Those that were thrown out are not put back there, again and again.
func TestWhatOthersDoIsLogged(t *testing.T) {
	server, b := alone(t)
	var l ledger
	var log lines
	limiter := each(t, func(int) time.Duration { return 4 * time.Second })
	limiter.copies = true
	handling, alarmed := make(chan struct{}), make(chan struct{})
	stop := running(t, Options{URL: b.url, Queue: "orders", QueueType: Classic, Limiter: limiter, Logger: slog.New(&log),
		Handler: HandlerFunc(func(ctx context.Context, d *amqp.Delivery) error {
			if d.MessageId == "200" && OperationOf(ctx).Attempts == 0 {
				close(handling)
				<-alarmed
				return errors.New("to be tried again")
			}
			return l.Handle(ctx, d)
		})})
	begun(t, b, "orders")
	ctl(t, server, "set_policy", "short", `\.\d+m?s\.\d\d$`, `{"max-length": 2}`, "--apply-to", "queues")
	b.publish("orders", numbered(0, 60)...)
	eventually(t, "all are handled", func() bool { return l.count() == 60 })
	const takesNone = "a delay queue takes no messages, others are used"
	if log.count(takesNone) == 0 {
		t.Error("nothing was logged of what a policy has thrown out")
	}
	ctl(t, server, "clear_policy", "short")
	for _, name := range b.delayQueues("orders") {
		b.ch.QueueDelete(name, false, false, false)
	}
	b.publish("orders", numbered(100, 130)...)
	eventually(t, "all are handled", func() bool { return l.count() == 90 })
	if n := log.count("a delay queue was deleted; messages that waited in it are lost"); n == 0 {
		t.Error("nothing was logged of the queues that were deleted")
	}
	b.publish("orders", numbered(200, 201)...)
	<-handling
	ctl(t, server, "set_vm_memory_high_watermark", "0.0000001")
	close(alarmed) // now there is something to publish
	eventually(t, "the broker blocks", func() bool {
		return log.count("the broker accepts no messages: postponing waits, handlers go on") > 0
	})
	ctl(t, server, "set_vm_memory_high_watermark", "0.8")
	eventually(t, "it is handled", func() bool { return l.among(200, 201) == 1 })
	// The broker has taken the message that it blocked for, so the message may be handled before the broker unblocks.
	eventually(t, "the broker accepts messages again", func() bool { return log.count("the broker accepts messages again") > 0 })
	stop()
}
