package consumer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	_ "github.com/drip-go/drip/storage/redis"
	"github.com/drip-go/drip/workertest"
)

// jobVariable, when set, makes this test binary a consumer process that does the job.
const jobVariable = "DRIP_TEST_JOB"

// job is a consumer process of a test.
type job struct {
	Kind                   string // see children
	RabbitMQ, Redis, Queue string
	Step                   step   // at which a victim dies
	Provider               string // that a sharer calls
}

// children are what a process does until its context ends, by the job's kind.
var children = map[string]func(context.Context, job) error{"checks": checks, "victim": victim, "takes its time": takesItsTime, "shares": sharer}

func TestMain(m *testing.M) {
	workertest.Child(conformance, limiting)
	if config := os.Getenv(jobVariable); config != "" {
		if err := child(config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Most of these tests wait for a broker most of the time.
	if err := flag.Set("test.parallel", "8"); err != nil { // -parallel on the command line is read later, and counts
		panic(err)
	}
	os.Exit(servers.Main(m))
}

// child does a job until its input ends.
func child(config string) error {
	var j job
	if err := json.Unmarshal([]byte(config), &j); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return children[j.Kind](ctx, j)
}

// process starts a process that does the job. It ends when its input is closed. Each line it prints goes to line.
func process(t *testing.T, j job, line func(string)) (cmd *exec.Cmd, input io.Closer, wait func() error) {
	t.Helper()
	config, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), jobVariable+"="+string(config))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			line(lines.Text())
		}
		ended <- cmd.Wait()
	}()
	return cmd, in, func() error { return <-ended }
}

// run is a line of the output: a message that was handled.
type run struct {
	Message, Entity string
	Millisecond     int64
}

const (
	entities               = 20
	perEntity              = 500
	bucketSize, bucketRate = 100, 50 // a second
)

// published is the message number n of an entity, which the handler must see as it is.
func published(entity string, n int) amqp.Publishing {
	return amqp.Publishing{
		Headers:       amqp.Table{"shop": entity, "number": int32(n), "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
		ContentType:   "application/json",
		DeliveryMode:  amqp.Persistent,
		Priority:      uint8(n % 10),
		CorrelationId: fmt.Sprint("correlation ", n),
		MessageId:     fmt.Sprint(entity, " ", n),
		Timestamp:     time.Unix(1_700_000_000+int64(n), 0),
		Type:          "order",
		AppId:         "shop",
		Body:          fmt.Appendf(nil, `{"shop":%q,"n":%d}`, entity, n),
	}
}

// checks compares each message with the published one, and prints it.
func checks(ctx context.Context, j job) error {
	s, err := storage.Open(ctx, j.Redis)
	if err != nil {
		return err
	}
	bucket, err := drip.New(drip.Options{Size: bucketSize, RefreshRate: bucketRate, Start: time.Unix(0, 0), Storage: s})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	c, err := New(Options{
		URL: j.RabbitMQ, Queue: j.Queue, Limiter: bucket,
		Entity: func(d *amqp.Delivery) (string, error) {
			shop, _ := d.Headers["shop"].(string)
			return shop, nil
		},
		Handler: HandlerFunc(func(_ context.Context, d *amqp.Delivery) error {
			entity, n := d.Headers["shop"].(string), int(d.Headers["number"].(int32))
			got := amqp.Publishing{
				Headers: d.Headers, ContentType: d.ContentType, DeliveryMode: d.DeliveryMode, Priority: d.Priority,
				CorrelationId: d.CorrelationId, MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Body: d.Body,
			}
			if want := published(entity, n); !reflect.DeepEqual(got, want) || d.RoutingKey != j.Queue || d.Exchange != "" {
				return fmt.Errorf("the handler got %+v from %q %q, published was %+v", got, d.Exchange, d.RoutingKey, want)
			}
			mu.Lock()
			defer mu.Unlock()
			return out.Encode(run{d.MessageId, entity, time.Now().UnixMilli()})
		}),
	})
	if err != nil {
		return err
	}
	return errors.Join(c.Run(ctx), s.(io.Closer).Close())
}

func TestTwoProcesses(t *testing.T) {
	t.Parallel()
	j := job{Kind: "checks", RabbitMQ: servers.UseRabbitMQ(t).URL(), Redis: servers.UseRedis(t).URL(), Queue: fmt.Sprint("orders", time.Now().UnixNano())}
	publish(t, j)
	runs := make(chan run, 2*entities*perEntity)
	var processes sync.WaitGroup
	var inputs []io.Closer
	for range 2 {
		handled := 0
		_, input, wait := process(t, j, func(line string) {
			var r run
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Errorf("%s: %v", line, err)
			}
			handled++
			runs <- r
		})
		inputs = append(inputs, input)
		processes.Go(func() {
			if err := wait(); err != nil {
				t.Error(err)
			}
			if handled == 0 {
				t.Error("a process handled nothing")
			}
		})
	}
	times := map[string]int{}
	at := map[string][]int64{}
	deadline := time.After(3 * time.Minute)
	for len(times) < entities*perEntity {
		select {
		case r := <-runs:
			times[r.Message]++
			at[r.Entity] = append(at[r.Entity], r.Millisecond)
		case <-deadline:
			t.Fatalf("%d of %d messages were handled", len(times), entities*perEntity)
		}
	}
	for _, input := range inputs {
		input.Close()
	}
	processes.Wait()
	close(runs)
	for r := range runs {
		times[r.Message]++
	}
	for message, n := range times {
		if n != 1 {
			t.Errorf("message %s was handled %d times", message, n)
		}
	}
	// A handler that begins in an interval was admitted in that interval or, when the process was slow, in the one before.
	for entity, ms := range at {
		slices.Sort(ms)
		for i := range ms {
			for k := i; k < len(ms); k++ {
				intervals := int(ms[k]/1000 - ms[i]/1000 + 1)
				if n := k - i + 1; n > bucketSize+bucketRate*(intervals+1) {
					t.Fatalf("%s: %d runs in %d seconds", entity, n, intervals)
				}
			}
		}
	}
}

func publish(t *testing.T, j job) {
	conn, err := amqp.Dial(j.RabbitMQ)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare(j.Queue, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	var last *amqp.DeferredConfirmation
	for n := range perEntity {
		for e := range entities {
			if last, err = ch.PublishWithDeferredConfirm("", j.Queue, true, false, published(fmt.Sprint("shop-", e), n)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !last.Wait() {
		t.Fatal("the broker did not confirm the messages")
	}
}
