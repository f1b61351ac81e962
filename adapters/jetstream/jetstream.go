// Package dripjetstream takes messages of a JetStream consumer through a rate limit of drip.
//
// A Limit postpones a message that may not run yet with NakWithDelay until its slot. The server keeps the headers of a
// message as they were published, so tickets wait in a stream of their own, in memory, by the sequence of their message.
package dripjetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/drip-go/drip/internal/outage"
	"github.com/drip-go/drip/internal/sleep"
	"github.com/drip-go/drip/worker"
)

// Options configure a Limit. Limiter and Entity are required. Attempts defaults to 5.
type Options = worker.Options[jetstream.Msg]

// Limit takes messages through a limit. Make one with New; it is safe for concurrent use.
//
// A message whose handler returns an error runs again, Options.Attempts times in all. worker.Throttled and worker.Later
// postpone the message. A Limit terminates a message that is given up, as by worker.Permanent, with the reason.
type Limit struct {
	js  jetstream.JetStream
	w   *worker.Worker[jetstream.Msg]
	log *slog.Logger

	inHand sync.Map // subjects of the notes of the messages in hand
}

// New checks the options and makes a Limit. Its error names the field that is wrong, or says that js is nil.
func New(js jetstream.JetStream, o Options) (*Limit, error) {
	if js == nil {
		return nil, errors.New("dripjetstream: the JetStream is nil")
	}
	o.Attempts = cmp.Or(o.Attempts, 5)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.ID == nil {
		o.ID = sequence
	}
	w, err := worker.New(o)
	if err != nil {
		return nil, err
	}
	return &Limit{js: js, w: w, log: o.Logger}, nil
}

// noteAge is how long the server keeps a ticket whose message does not come back. A message that waits for longer comes back earlier,
// and its ticket is stored anew.
const noteAge = 24 * time.Hour

// Consume handles messages of a pull consumer until ctx ends, and returns when the messages in hand have ended. The handlers'
// context ends worker.DrainTime after ctx. It has at most inHand messages in hand, each in a goroutine of its own.
//
// The consumer must acknowledge explicitly and have no MaxDeliver, because each postponement is a delivery, and no BackOff,
// because NATS adds it to each delay; Consume returns an error otherwise. It also returns an error if it cannot make and use the
// stream of the tickets, when the consumer is deleted, and when the connection is closed, else nil. Postponed messages count against the
// consumer's MaxAckPending.
func (l *Limit) Consume(ctx context.Context, c jetstream.Consumer, inHand int, handle func(context.Context, jetstream.Msg) error) error {
	info := c.CachedInfo()
	config := info.Config
	switch {
	case inHand < 1:
		return fmt.Errorf("dripjetstream: inHand is %d; it must be above 0", inHand)
	case config.AckPolicy != jetstream.AckExplicitPolicy:
		return fmt.Errorf("dripjetstream: consumer %q does not acknowledge explicitly", info.Name)
	case config.MaxDeliver > 0:
		return fmt.Errorf("dripjetstream: consumer %q has a MaxDeliver of %d, and each postponement is a delivery; set it to -1 and Options.Attempts", info.Name, config.MaxDeliver)
	case len(config.BackOff) > 0:
		return fmt.Errorf("dripjetstream: consumer %q has a BackOff, which also changes the delays of postponed messages; unset it", info.Name)
	case handle == nil:
		return errors.New("dripjetstream: handle is nil") // else each message would fail, and be given up
	}
	notes, err := l.notes(ctx, info)
	if ctx.Err() != nil {
		return nil
	} else if err != nil {
		return fmt.Errorf("dripjetstream: tickets of consumer %q: %w", info.Name, err)
	}
	stopped := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	handling, end := worker.Drain(stopped)
	defer end()
	var pulling sync.WaitGroup
	consuming := &consumption{Limit: l, config: config, notes: notes, hands: make(chan struct{}, inHand), handle: handle}
	for range min(pulls, inHand) {
		pulling.Go(func() {
			if err := consuming.pull(ctx, handling, c); err != nil {
				cancel(fmt.Errorf("dripjetstream: consume %q: %w", info.Name, err))
			}
		})
	}
	pulling.Wait()
	err = context.Cause(ctx)
	consuming.running.Wait()
	flush, stop := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer stop()
	if err := l.js.Conn().FlushWithContext(flush); err != nil {
		l.log.Warn("the last acknowledgements may be lost", "consumer", info.Name, "error", err)
	}
	if stopped.Err() != nil {
		return nil
	}
	return err
}

// consumption is one call of Consume.
type consumption struct {
	*Limit
	config  jetstream.ConsumerConfig
	notes   *notes
	hands   chan struct{}  // has a place for each message in hand
	running sync.WaitGroup // of the messages in hand
	handle  func(context.Context, jetstream.Msg) error

	receiving outage.Outage
	asking    sync.Mutex // for the consumer: its Info writes into it
}

// pulls is how many pulls run at once, each for one message. Further messages of one pull would wait in the client, where
// nothing tells the server that they are in hand.
const pulls = 8

// heartbeat is how often the server tells that it has no message. After twice that time without one a pull begins anew.
const heartbeat = 5 * time.Second

// pull takes one message after the other until ctx ends. Each needs a place in hands. handling is the handlers' context.
func (c *consumption) pull(ctx, handling context.Context, from jetstream.Consumer) error {
	expires := jetstream.DefaultExpires // of a pull
	if most := c.config.MaxRequestExpires; most > 0 {
		expires = min(expires, most) // the server refuses a longer one, and the client hides that
	}
	messages, err := from.Messages(jetstream.PullMaxMessages(1), jetstream.PullExpiry(expires), jetstream.PullHeartbeat(min(heartbeat, expires/2)))
	if err != nil {
		return err
	}
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	for {
		select {
		case c.hands <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		msg, err := messages.Next()
		switch {
		case err == nil:
			if c.receiving.Works() {
				c.log.Info("messages from the server again")
			}
			c.running.Go(func() {
				defer func() { <-c.hands }()
				c.step(handling, msg)
			})
			continue
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, jetstream.ErrMsgIteratorClosed), errors.Is(err, jetstream.ErrConsumerDeleted):
			return err
		}
		<-c.hands
		if errors.Is(err, jetstream.ErrNoHeartbeat) && c.asking.TryLock() { // of a consumer that was deleted meanwhile, too
			err := missing(ctx, from)
			c.asking.Unlock()
			if err != nil {
				return err
			}
		}
		if c.receiving.Fails(err) {
			c.log.Warn("no message from the server, will try again", "error", err)
		}
		sleep.For(ctx, time.Second)
	}
}

// missing returns an error if the server has no such consumer.
func missing(ctx context.Context, c jetstream.Consumer) error {
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	_, err := c.Info(ctx)
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	return nil
}

const flushTimeout = 5 * time.Second

// step handles a delivery and then acknowledges, postpones or terminates the message.
func (c *consumption) step(ctx context.Context, msg jetstream.Msg) {
	meta, err := msg.Metadata()
	if err != nil {
		return // not of a consumer
	}
	key := sequence(msg)
	subject := c.notes.prefix + key
	if _, inHand := c.inHand.LoadOrStore(subject, true); inHand {
		return // the server has lost sight of the message for a while; its first delivery settles it
	}
	end := keep(msg, c.config.AckWait)
	stop := sync.OnceFunc(func() { end(); c.inHand.Delete(subject) }) // before it is settled: it may come back at once
	defer stop()
	note := ""
	if meta.NumDelivered > 1 {
		if note, err = c.notes.get(ctx, key); err != nil {
			stop()
			_ = msg.NakWithDelay(sleep.Jitter(time.Second)) // as a newcomer it would lose its place and its failures so far
			return
		}
	}
	out := c.w.Do(ctx, msg, note, func(ctx context.Context) error { return c.handle(ctx, msg) })
	ctx = context.WithoutCancel(ctx)
	switch {
	case out.Delay > 0:
		c.notes.put(ctx, key, out.Note.String())
		due := out.Note.Due
		stop()
		err = msg.NakWithDelay(min(max(time.Until(due), time.Millisecond), noteAge/2))
	case out.Err != nil:
		stop()
		err = c.terminate(msg, out.Reason())
	default:
		stop()
		err = msg.Ack()
	}
	if errors.Is(err, jetstream.ErrMsgAlreadyAckd) {
		c.log.Warn("the handler has settled its message, which is the task of Consume", "sequence", meta.Sequence.Stream)
	} else if err != nil {
		c.log.Warn("a message will be delivered again", "sequence", meta.Sequence.Stream, "error", err)
		return
	}
	if out.Delay == 0 && note != "" {
		_ = c.notes.drop(ctx, key)
	}
}

// terminate gives a message up. A server before 2.10.4 ignores a reason together with its message, and would deliver that again.
func (l *Limit) terminate(msg jetstream.Msg, reason string) error {
	var major, minor, patch int
	_, _ = fmt.Sscanf(l.js.Conn().ConnectedServerVersion(), "%d.%d.%d", &major, &minor, &patch)
	if slices.Compare([]int{major, minor, patch}, []int{2, 10, 4}) < 0 {
		return msg.Term()
	}
	return msg.TermWithReason(reason)
}

// sequence returns the message's sequence in its stream, as a text.
func sequence(msg jetstream.Msg) string {
	meta, err := msg.Metadata()
	if err != nil {
		return ""
	}
	return strconv.FormatUint(meta.Sequence.Stream, 10)
}

// keep tells the server that a message is in hand until stop is called, once.
func keep(msg jetstream.Msg, ackWait time.Duration) (stop func()) {
	ended := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(max(ackWait/3, time.Millisecond))
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				_ = msg.InProgress() // without a connection the server delivers it again
			case <-ended:
				return
			}
		}
	}()
	return func() { close(ended); <-stopped }
}

// notes are the notes of postponed messages, in a stream of their own. A message whose note is lost is a new message: it loses
// its place and its failures so far. A message that is delivered again waits until the server tells its note, or that there is none.
type notes struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	config jetstream.StreamConfig
	prefix string // of the subjects, which end with the sequence of the message
	made   string // when the consumer was made: a stream that is made anew has other messages with the same sequences
	log    *slog.Logger

	reading outage.Outage
}

// unambiguous makes the hyphen that ends a name recognizable: the consumer b-c of the stream a is not the consumer c of a-b.
var unambiguous = strings.NewReplacer("=", "==", "-", "=-")

// notes makes the stream. It tries all that Consume does with it: without a permission messages would wait for ever, or begin anew each
// time.
func (l *Limit) notes(ctx context.Context, info *jetstream.ConsumerInfo) (*notes, error) {
	prefix := "drip." + info.Stream + "." + info.Name + "."
	config := jetstream.StreamConfig{
		Name: "drip-" + unambiguous.Replace(info.Stream) + "-" + info.Name, Description: "tickets of postponed messages", Subjects: []string{prefix + "*"},
		MaxMsgsPerSubject: 1, MaxAge: noteAge, Storage: jetstream.MemoryStorage, AllowDirect: true,
	}
	n := &notes{js: l.js, config: config, prefix: prefix, made: info.Created.UTC().Format(time.RFC3339Nano), log: l.log}
	making, cancel := context.WithTimeout(ctx, makeTimeout)
	defer cancel()
	var err error
	if n.stream, err = l.js.CreateOrUpdateStream(making, config); err == nil {
		const nobody = "0" // sequences begin with 1
		if err = n.write(ctx, nobody, ""); err == nil {
			_, err = n.read(ctx, nobody)
		}
		if err == nil {
			err = n.drop(ctx, nobody)
		}
	}
	if refusal := l.js.Conn().LastError(); err != nil && errors.Is(refusal, nats.ErrPermissionViolation) { // without which the server is only silent
		err = fmt.Errorf("%w, after %w", err, refusal)
	}
	return n, err
}

// madeHeader has notes.made in a note.
const madeHeader = "Drip-Made"

const (
	makeTimeout = 5 * time.Second
	noteTimeout = 2 * time.Second
)

// get returns the note of a message, "" if there is none. Its error means that there may be one.
func (n *notes) get(ctx context.Context, message string) (string, error) {
	note, err := n.read(ctx, message)
	switch {
	case errors.Is(err, nats.ErrNoResponders): // a server that restarts forgets a stream in memory
		n.log.Warn("no tickets on the server, a message begins anew", "sequence", message, "error", err)
		return "", nil
	case err != nil:
		if n.reading.Fails(err) {
			n.log.Warn("no answer about tickets, their messages wait", "sequence", message, "error", err)
		}
		return "", err
	}
	if n.reading.Works() {
		n.log.Info("answers about tickets again")
	}
	return note, nil
}

func (n *notes) read(ctx context.Context, message string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	m, err := n.stream.GetLastMsgForSubject(ctx, n.prefix+message)
	if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && m.Header.Get(madeHeader) != n.made {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return string(m.Data), nil
}

// put stores the note of a message. Without an answer nobody knows whether the server has stored it.
func (n *notes) put(ctx context.Context, message, note string) {
	if err := n.write(ctx, message, note); err != nil {
		n.log.Warn("a ticket may be lost", "sequence", message, "error", err)
	}
}

func (n *notes) write(ctx context.Context, message, note string) error {
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	msg := nats.NewMsg(n.prefix + message)
	msg.Data = []byte(note)
	msg.Header.Set(madeHeader, n.made)
	_, err := n.js.PublishMsg(ctx, msg)
	if errors.Is(err, jetstream.ErrNoStreamResponse) { // a server that restarts forgets a stream in memory
		if _, err = n.js.CreateOrUpdateStream(ctx, n.config); err == nil {
			_, err = n.js.PublishMsg(ctx, msg)
		}
	}
	return err
}

// drop removes the note by its subject: after a restart of the server another note has its sequence. A note that stays ends by itself.
func (n *notes) drop(ctx context.Context, message string) error {
	ctx, cancel := context.WithTimeout(ctx, noteTimeout)
	defer cancel()
	return n.stream.Purge(ctx, jetstream.WithPurgeSubject(n.prefix+message))
}
