// Demo shows drip at work, with a few thousand messages in RabbitMQ for a dozen shops at once. The provider allows each
// shop ten calls a second, the app fewer than its shops together, and one endpoint fewer still. It refuses further calls.
// Two consumer processes share one Redis. Every message gets its call as early as the limits allow, the urgent ones at
// once. No call is refused, and no message is lost.
//
//	go run -C examples/demo .
//
// It is a module of its own, for the sake of OpenTelemetry's SDK: each consumer process serves its metrics for
// Prometheus, the first one at 127.0.0.1:9464, the next one at 9465. examples/observability has a dashboard for them.
//
// DRIP_RABBITMQ_URL and DRIP_REDIS_URL name RabbitMQ and Redis. Without them the demo starts private ones, and stops them.
// The exit status is 1 if the provider refused a call, if a message was lost, or if something else went wrong.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
)

// The provider allows a shop a bucket that leaks all the time, and a number of calls at once.
const (
	bucketSize = 40
	leakRate   = 10 // a second
	mostAtOnce = 15
)

// These are drip's options. The rate is the provider's. A token is returned after the provider's answer, so as many
// may be out as the provider allows calls at once. But Size must be well below the bucket's, for two reasons. drip
// refreshes all at once at the beginning of an interval, and the bucket leaks evenly. drip counts a call when it decides,
// and the provider counts it when it arrives. In any t seconds at most these calls arrive: size that were on their way
// before, size of capacity that was left, and refreshRate for each of at most t+1 refreshes. The bucket leaks
// t*leakRate of them. So if 2*size+refreshRate fit in, none is refused, however slow the network or the machine.
const (
	size            = 15
	refreshRate     = 10
	refreshInterval = time.Second

	_ = uint(mostAtOnce - size) // or it does not compile
	_ = uint(bucketSize - 2*size - refreshRate)
)

// onTheWay is how long a call may be on its way to the provider. drip's limits that shops share leave room for that.
const onTheWay = 500 * time.Millisecond

// sharedRules are the provider's limits that shops share, leaky buckets, too. The app's is two thirds of its shops' limits
// together. The other one is of the endpoint for the stock.
func sharedRules(shops int) map[string]rule {
	perSecond := max(10, 2*shops*leakRate/3)
	return map[string]rule{
		appLimit:   {Size: 2 * perSecond, PerSecond: perSecond},
		stockLimit: {Size: perSecond, PerSecond: max(2, perSecond/6)},
	}
}

const (
	appLimit   = "app"
	stockLimit = "stock"
)

// errFailed ends the demo with status 1, after the demo has printed the cause.
var errFailed = errors.New("the demo has failed")

func main() {
	if os.Getenv(roleVariable) == consumerRole {
		os.Exit(consumerMain())
	}
	shops := flag.Int("shops", 12, "`number` of shops")
	messages := flag.Int("messages", 2800, "`number` of messages for all shops together, about")
	processes := flag.Int("consumers", 2, "`number` of consumer processes")
	metrics := flag.String("metrics", "127.0.0.1:9464", "`address` of the first process's metrics for Prometheus, empty for none")
	record := flag.String("record", "", "a `file` to record the table in, as an SVG that moves")
	flag.Parse()
	if flag.NArg() > 0 || *shops < 1 || *messages < 1 || *processes < 1 {
		fmt.Fprintln(os.Stderr, "demo: it takes no arguments, and each number must be at least 1")
		flag.Usage()
		os.Exit(2)
	}
	if _, err := metricsOf(*metrics, *processes-1); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(2)
	}
	// SIGPIPE: who pipes us into head wants no servers left behind either.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	err := demo(ctx, *shops, *messages, *processes, *metrics, *record)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "demo: interrupted")
		os.Exit(130)
	case errors.Is(err, errFailed):
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// demo gets the servers, runs, and removes everything it has made.
func demo(ctx context.Context, shops, messages, processes int, metrics, record string) error {
	began := time.Now()
	out := newScreen(os.Stdout)
	if record != "" {
		out.record = &recording{}
	}
	rabbitURL, redisURL, stop, err := getServers(ctx, out)
	defer stop()
	if err != nil {
		return err
	}
	if err := checkStorage(ctx, redisURL); err != nil {
		return err
	}
	run := "drip-demo-" + strings.ToLower(rand.Text()[:8])
	plan := newPlan(shops, messages)
	rules := sharedRules(shops)
	ledger := newLedger(plan, rules[appLimit], time.Now())
	provider := newProvider(ledger, rules)
	if err := provider.start(); err != nil {
		return err
	}
	defer provider.close()
	broker, err := openBroker(rabbitURL, run)
	if err != nil {
		return err
	}
	defer broker.close()
	consumers, err := startConsumers(processes, settings{
		RabbitMQ: rabbitURL, Storage: redisURL, Provider: provider.url, Queue: run, Metrics: metrics, Rules: rules,
	}, ledger, out)
	defer consumers.stop()
	if err != nil {
		return err
	}
	if err := broker.awaitConsumers(ctx, processes, consumers.failed); err != nil {
		return err
	}
	out.say(fmt.Sprintf("Ready after %s. Consumer processes: %d. Shops: %d, with %d calls a second each.\nAll of them together have %d a second, in bursts %d; %d a second of these may be about the stock.\n",
		seconds(time.Since(began)), processes, shops, refreshRate, rules[appLimit].PerSecond, rules[appLimit].Size, rules[stockLimit].PerSecond))

	err = watch(ctx, plan, ledger, broker, consumers, out)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// Only when no consumer is left nothing can be handled a second time.
	if stopErr := consumers.stop(); err == nil {
		err = stopErr
	}
	left, removeErr := broker.remove()
	results := ledger.results()
	out.say(summary(results, len(left)))
	out.say(shared(ledger.shared(), rules))
	text, ok := verdict(results[shops], left, ledger.missing(5), errors.Join(err, removeErr))
	out.say(text)
	if !ok {
		return errFailed
	}
	if record != "" {
		return out.record.write(record, table(ledger.snapshot(time.Now()))+"\n\n"+text)
	}
	return nil
}

// watch publishes and shows what happens until every message is done.
func watch(ctx context.Context, p plan, l *ledger, b *broker, c *consumers, out *screen) error {
	ctx, cancel := context.WithCancel(ctx)
	published := make(chan error, 1)
	go func() { published <- b.publish(ctx, p, l) }()
	publishing := published
	defer func() {
		cancel()
		if publishing != nil {
			<-publishing
		}
	}()

	// Twice as long as the shops need at the app's limit, and some time for a machine that is busy with other things.
	limit := 2*p.shortest(l.rule.PerSecond) + 40*time.Second
	over := time.After(limit)
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case err := <-publishing:
			publishing = nil
			if err != nil {
				return fmt.Errorf("publish: %w", err)
			}
		case err := <-c.failed:
			return err
		case <-over:
			return fmt.Errorf("not finished within %v", limit)
		case <-ctx.Done():
			return ctx.Err()
		case now := <-look.C:
			s := l.snapshot(now)
			out.show(s, now)
			if s.finished() && publishing == nil {
				return nil
			}
		}
	}
}

// checkStorage returns an error early if the storage does not answer: consumers would wait for it, and log that for each
// message.
func checkStorage(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s, err := storage.Open(ctx, url)
	if err != nil {
		return err
	}
	defer closeStorage(s)
	if _, _, err := s.Get(ctx, "drip-demo"); err != nil {
		return fmt.Errorf("the storage of DRIP_REDIS_URL: %w", err)
	}
	return nil
}

// getServers returns the addresses of servers that run already or that it starts. stop ends the started servers; call it also
// after an error.
func getServers(ctx context.Context, out *screen) (rabbitURL, redisURL string, stop func(), err error) {
	var stops []func() error
	stop = func() {
		for _, s := range stops {
			if err := s(); err != nil {
				fmt.Fprintln(os.Stderr, "demo:", err)
			}
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	rabbitURL, redisURL = os.Getenv("DRIP_RABBITMQ_URL"), os.Getenv("DRIP_REDIS_URL")
	if rabbitURL == "" || redisURL == "" {
		out.say("Starting private servers ...")
	}
	if redisURL == "" {
		s, err := servers.StartRedis(ctx)
		if err != nil {
			return "", "", stop, err
		}
		redisURL, stops = s.URL(), append(stops, s.Stop)
	}
	if rabbitURL == "" {
		s, err := servers.StartRabbitMQ(ctx)
		if err != nil {
			return "", "", stop, err
		}
		rabbitURL, stops = s.URL(), append(stops, s.Stop)
	}
	return rabbitURL, redisURL, stop, nil
}
