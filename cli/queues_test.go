package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/consumer"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/oktest"
	"github.com/drip-go/drip/internal/servers"
)

// workQueue declares one, and returns a channel beside.
func workQueue(t *testing.T, url string) (*amqp.Channel, string) {
	t.Helper()
	ch, name := servers.Channel(t, url), fmt.Sprintf("orders-%d", time.Now().UnixNano())
	servers.Declare(t, ch, "classic", name)
	return ch, name
}

type queuesAnswer struct {
	Queue, Due, Dead *struct {
		Name                string
		Messages, Consumers int
	}
	Waiting int
	NextDue time.Time `json:"next_due"`
	Delays  []struct {
		Name     string
		Messages int
		Expires  time.Time
	} `json:"delay_queues"`
}

func lookAtQueues(t *testing.T, url, queue string) (a queuesAnswer) {
	t.Helper()
	ok(t, json.Unmarshal([]byte(must(t, "queues", patient, url, queue, "--json")), &a))
	return a
}

// leaves checks that a message which was due between two times leaves the delay queues between two others, as seen from when
// it is due.
func (a queuesAnswer) leaves(t *testing.T, ring string, messages int, from, to time.Time) {
	t.Helper()
	n := 0 // of two queues, if a slot has just ended
	for _, d := range a.Delays {
		if strings.Contains(d.Name, "."+ring+".") && !d.Expires.Before(from.Truncate(time.Millisecond)) && !d.Expires.After(to) {
			n += d.Messages
		}
	}
	if n != messages {
		t.Errorf("%d messages in queues of %s leave from %v to %v, want %d: %+v", n, ring, from, to, messages, a.Delays)
	}
}

// The command shows the messages in the DelayQueues of a consume loop.
func TestQueues(t *testing.T) {
	url := servers.UseRabbitMQ(t).URL()
	ch, queue := workQueue(t, url)
	prints(t, "\n0 messages wait in 0 of 0 delay queues\n", "queues", patient, url, queue)
	delays, err := consumer.OpenDelayQueues(t.Context(), consumer.DelayQueuesOptions{URL: url, Queue: queue, QueueType: consumer.Classic})
	ok(t, err)
	defer delays.Close()
	ok(t, ch.PublishWithContext(t.Context(), "", queue, false, false, amqp.Publishing{}))
	begin := time.Now()
	for _, d := range []time.Duration{4 * time.Second, time.Minute, 10 * time.Minute, 10 * time.Minute, 3 * time.Hour} {
		ok(t, delays.Postpone(t.Context(), &amqp.Delivery{Body: []byte("order")}, d))
	}
	end := time.Now()
	text := must(t, "queues", patient, url, queue)
	a := lookAtQueues(t, url, queue)
	t.Log("\n" + text)
	if a.Queue.Name != queue || a.Due != nil || a.Dead != nil || a.Queue.Messages+a.Waiting != 6 {
		t.Errorf("of 6 messages: %+v", a)
	}
	if !strings.Contains(text, "of 65 delay queues, the first until ") {
		t.Errorf("64 are declared at the start and one when it was needed:\n%s", text)
	}
	// A loop of one's own gets a message when it is due, from the coarser rings up to a slot and a second before.
	if len(a.Delays) == 4 { // else the machine was slow, and the first has left
		a.leaves(t, "250ms", 1, begin.Add(4*time.Second), end.Add(4250*time.Millisecond))
		if !a.NextDue.Equal(a.Delays[0].Expires) || !strings.Contains(a.Delays[0].Name, ".250ms.") {
			t.Errorf("next due is %v: %+v", a.NextDue, a.Delays)
		}
	}
	a.leaves(t, "4s", 1, begin.Add(55*time.Second), end.Add(59*time.Second))
	a.leaves(t, "64s", 2, begin.Add(535*time.Second), end.Add(599*time.Second))
	a.leaves(t, "1024s", 1, begin.Add(3*time.Hour-1025*time.Second), end.Add(3*time.Hour-time.Second))
}

// Two loops with different delay queues for one work queue.
func TestQueuesOfTwoLayouts(t *testing.T) {
	url := servers.UseRabbitMQ(t).URL()
	_, queue := workQueue(t, url)
	begin := time.Now()
	for _, few := range []bool{false, true} {
		delays, err := consumer.OpenDelayQueues(t.Context(), consumer.DelayQueuesOptions{URL: url, Queue: queue, QueueType: consumer.Classic, FewQueues: few})
		ok(t, err)
		defer delays.Close()
		ok(t, delays.Postpone(t.Context(), &amqp.Delivery{Body: []byte("order")}, time.Minute))
	}
	end := time.Now()
	prints(t, "2 messages wait in 2 of 82 delay queues, the first until ", "queues", patient, url, queue) // of 64 and 18
	a := lookAtQueues(t, url, queue)
	a.leaves(t, "v1.4s", 1, begin.Add(55*time.Second), end.Add(59*time.Second))
	a.leaves(t, "v1few.24s", 1, begin.Add(35*time.Second), end.Add(59*time.Second))
}

// The command shows the messages in the delay queues of a Consumer.
func TestQueuesOfAConsumer(t *testing.T) {
	url := servers.UseRabbitMQ(t).URL()
	ch, queue := workQueue(t, url)
	c, err := consumer.New(consumer.Options{
		URL: url, Queue: queue, QueueType: consumer.Classic,
		Limiter: &buckettest.Plain{Delays: time.ParseDuration}, // an entity is how long to wait
		Entity:  func(d *amqp.Delivery) (string, error) { return string(d.Body), nil },
		Handler: consumer.HandlerFunc(func(context.Context, *amqp.Delivery) error { return nil }),
	})
	ok(t, err)
	_, stop := oktest.Begin(t, 5*time.Minute, c.Run)
	defer stop()
	begin := time.Now()
	for _, delay := range []string{"5s", "5m", "5m"} {
		ok(t, ch.PublishWithContext(t.Context(), "", queue, false, false, amqp.Publishing{Body: []byte(delay)}))
	}
	var a queuesAnswer
	for a.Waiting < 3 {
		if a = lookAtQueues(t, url, queue); time.Since(begin) > 4*time.Minute {
			t.Fatalf("nothing waits: %+v", a)
		}
	}
	end := time.Now()
	t.Log("\n" + must(t, "queues", patient, url, queue))
	if a.Due == nil || a.Dead == nil || a.Dead.Messages != 0 || a.Waiting != 3 {
		t.Errorf("%+v", a)
	}
	// It holds a message for the last part of a slot and 700 ms.
	a.leaves(t, "250ms", 1, begin.Add(4050*time.Millisecond), end.Add(4300*time.Millisecond))
	a.leaves(t, "64s", 2, begin.Add(235*time.Second), end.Add(299*time.Second))
}

func TestQueuesThatAreNotThere(t *testing.T) {
	url := servers.UseRabbitMQ(t).URL()
	for line, want := range map[string]struct {
		status int
		text   string
	}{
		url + " nowhere":                             {statusFailure, `look at "nowhere"`},
		url + "/no-such-host orders":                 {statusFailure, "The virtual host is the path of the URL"},
		"amqp://127.0.0.1:1 orders":                  {statusNoAnswer, "Nothing listens at that address"},
		strings.Replace(url, "@", "x@", 1) + " nope": {statusFailure, "Are the user and the password in the URL right?"},
	} {
		if o := try(t, append([]string{"queues", patient}, strings.Fields(line)...)...); o.status != want.status || !strings.Contains(o.err, want.text) {
			t.Errorf("drip queues %s: %+v\nwant %+v", line, o, want)
		}
	}
}
