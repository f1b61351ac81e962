package consumer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/outage"
	"github.com/drip-go/drip/internal/sleep"
)

// start calls begin until it succeeds: it waits for a broker that is down or just coming up. It returns an error that another
// try would not change at once, and with failFast any error. Of many quorum queues declared on a busy node one may not elect
// its leader in time, so start tries that three times even with failFast. It tries a refused connection handshakes times:
// the client returns the same error for a connection that was lost meanwhile.
func start(ctx context.Context, failFast bool, log *slog.Logger, begin func() error) error {
	var p pace
	for tries := 1; ; tries++ {
		err := begin()
		refused := errors.Is(err, amqp.ErrCredentials) || errors.Is(err, amqp.ErrVhost)
		if err == nil || ctx.Err() != nil || isLastWord(err) && (!refused || tries == handshakes) {
			return err
		}
		if failFast && (code(err) != amqp.InternalError || tries == 3) {
			return err
		}
		if p.Fails(err) {
			log.Warn("cannot begin, will try again", "error", err)
		}
		if !p.wait(ctx) {
			return err
		}
	}
}

// pace is the pauses between tries to connect, and the outage that they are tries in. Each pause is twice as long as the one before, up
// to longestPause. The zero value begins with firstBackoff.
type pace struct {
	outage.Outage
	last time.Duration
}

// longestPause is short, because a consumer without a connection leaves the limit unused, and a refused connection costs little.
const longestPause = 2 * time.Second

// wait waits for the next pause and reports whether ctx lived that long.
func (p *pace) wait(ctx context.Context) bool {
	p.last = min(max(2*p.last, firstBackoff), longestPause)
	return sleep.For(ctx, sleep.Jitter(p.last))
}

// handshakes is how often start tries a refused connection. That takes three seconds, in which a dying broker ends.
const handshakes = 6

// isLastWord reports whether another try would fail for the same reason.
func isLastWord(err error) bool {
	if errors.Is(err, ErrQueue) || errors.Is(err, ErrBroker) || errors.As(err, new(*tls.CertificateVerificationError)) {
		return true
	}
	switch code(err) {
	case amqp.AccessRefused, amqp.PreconditionFailed, amqp.NotAllowed, amqp.NotImplemented:
		return true
	}
	return false
}

// ErrQueue is the error of Run and OpenDelayQueues when the work queue does not exist, is a stream, or is exclusive to
// another connection.
var ErrQueue = errors.New("the work queue cannot be used")

// checkQueue returns ErrQueue if a queue does not exist.
func checkQueue(ch *amqp.Channel, name string) error {
	_, err := ch.QueueDeclarePassive(name, false, false, false, false, nil)
	switch {
	case code(err) == amqp.NotFound && strings.Contains(err.Error(), "no queue"): // else its node is down
		return fmt.Errorf("%w: there is no queue %q; declare it first: %w", ErrQueue, name, err)
	case code(err) == amqp.ResourceLocked:
		return fmt.Errorf("%w: %q is exclusive to another connection: %w", ErrQueue, name, err)
	case err != nil:
		return fmt.Errorf("look at queue %q: %w", name, permissions(err))
	}
	return nil
}

// permissions adds to the error of a missing permission where to find the list of the permissions needed. The broker refuses a queue
// with an exclusive consumer with the same code.
func permissions(err error) error {
	switch {
	case code(err) != amqp.AccessRefused:
		return err
	case strings.Contains(err.Error(), "' in exclusive use"):
		return fmt.Errorf("%w; an exclusive consumer has it: end that one, or make it not exclusive", err)
	}
	return fmt.Errorf("%w; docs/operating.md lists the permissions that drip needs", err)
}

// examine checks that the work queue can be used. known tells whether the broker has named its type. With start it also checks that the
// broker has the features and permissions that drip needs, before a message needs them.
func (q *DelayQueues) examine(ctx context.Context, work string, start bool) (known bool, err error) {
	err = q.publisher.declare(ctx, func(ch *amqp.Channel) (err error) {
		if err = checkQueue(ch, work); err == nil {
			known, err = checkType(ch, work)
		}
		return err
	})
	if err != nil || !start {
		return known, err
	}
	probe := q.prefix + "probe"
	err = q.publisher.declare(ctx, func(ch *amqp.Channel) error { return checkPermissions(ch, probe) })
	if err == nil && q.queueType == Quorum {
		err = q.publisher.supportsQuorum(ctx, probe)
	}
	return known, err
}

// checkPermissions returns an error if the user may not declare drip's queues and publish to them. It asks with a queue that
// the broker never declares because there is no such type. Where all queues exist nothing else would show a missing
// permission before the first postponement.
func checkPermissions(ch *amqp.Channel, name string) error {
	_, err := ch.QueueDeclare(name, true, false, false, false, amqp.Table{amqp.QueueTypeArg: "drip asks for permissions", "x-dead-letter-exchange": ""})
	switch code(err) {
	case amqp.AccessRefused:
		return fmt.Errorf("declare queues of drip's and publish to them: %w", permissions(err))
	case amqp.PreconditionFailed:
		return nil
	}
	return err
}

// checkType returns errStream if a queue is a stream. known tells whether the broker has named the type. checkType declares the
// queue with a type that does not exist, and the broker's error names the real type, if the user has the permission to
// configure the queue.
func checkType(ch *amqp.Channel, name string) (known bool, err error) {
	_, err = ch.QueueDeclare(name, true, false, false, false, amqp.Table{amqp.QueueTypeArg: "drip asks for the type"})
	switch code(err) {
	case amqp.AccessRefused:
		return false, nil
	case amqp.PreconditionFailed:
		text := err.Error()
		current := strings.LastIndex(text, "current is") // the name of the queue is before
		if current < 0 {
			return false, nil
		}
		if strings.Contains(text[current:], "'stream'") {
			return true, stream(name)
		}
		return true, nil
	}
	return false, err
}

var errStream = errors.New("is a stream, which keeps acknowledged messages; use a quorum or a classic queue")

func stream(queue string) error { return fmt.Errorf("%w: %q %w", ErrQueue, queue, errStream) }

// ErrBroker is the error of Run and OpenDelayQueues when the broker has no quorum queues that dead-letter at least
// once.
var ErrBroker = errors.New("the broker has no quorum queues that dead-letter at least once")

// supportsQuorum returns ErrBroker if the broker lacks the features that delay queues need. Without the feature flag
// stream_queue RabbitMQ 3.10 and 3.11 accept the declaration, dead-letter at most once and say so in their log. Later
// versions always have the flag.
func (p *publisher) supportsQuorum(ctx context.Context, name string) error {
	l, err := p.acquire(ctx, ctx)
	if err != nil {
		return err
	}
	version, _ := l.conn.Properties["version"].(string)
	p.release()
	var major, minor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &major, &minor); n < 2 || major > 3 || minor > 11 {
		return nil
	}
	if major < 3 || minor < 10 {
		return fmt.Errorf("%w: RabbitMQ %s is older than 3.10; upgrade it, or choose the queue type classic", ErrBroker, version)
	}
	// A stream must be durable, so the broker never declares this one.
	err = p.declare(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(name, false, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeStream})
		return err
	})
	switch {
	case code(err) == amqp.InternalError && strings.Contains(err.Error(), "feature flag"):
		return fmt.Errorf("%w: enable them with \"rabbitmqctl enable_feature_flag stream_queue\", or choose the queue type classic: %w", ErrBroker, err)
	case code(err) == amqp.PreconditionFailed:
		return nil
	}
	return err
}
