package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Errors of a publishing. After errUnconfirmed and errSilent the broker may have stored the message; after the others it has
// not.
var (
	errUnroutable  = errors.New("returned as unroutable")
	errRefused     = errors.New("refused by the broker")
	errUnconfirmed = errors.New("not confirmed by the broker")
	errSilent      = errors.New("not confirmed by the broker in time")
	errBlocked     = errors.New("accepts no messages now")
	errTooLarge    = errors.New("larger than the broker takes")
	errOutdated    = errors.New("waited too long to be published as it is")
)

// publisher publishes on a connection of its own: a broker short of memory stops reading from connections that
// publish, and acknowledgements must go through then. It returns when the broker has confirmed the message and
// not returned it. It connects on first use and again after a failure.
type publisher struct {
	connect func(ctx context.Context) (*amqp.Connection, error)
	timeout time.Duration // for one confirmation, unless the broker is slow
	log     *slog.Logger

	// A caller holds turn while connecting and while writing to the channel. It is a Go channel so that waiting for it ends
	// with the context: a write to a blocked broker may take long.
	turn chan struct{}

	mu     sync.Mutex // guards the fields below; never held over I/O
	closed bool
	line   *line         // nil when there is none
	slow   time.Duration // the time for one confirmation while the broker is slow, else 0

	largest int       // bytes of a body, when the broker has refused a larger one; 0 if it has not
	noted   time.Time // when it did
}

// line is one connection of a publisher, with the publishings that wait for their confirmation on it.
type line struct {
	conn    *amqp.Connection
	log     *slog.Logger
	publish *amqp.Channel
	declare *amqp.Channel // of its own: a declaration on a channel that publishes breaks the connection
	done    chan struct{} // closed when the publish channel is

	returnsNoted chan chan struct{} // to read, which closes the received channel when it has noted all earlier returns

	opened time.Time

	mu      sync.Mutex
	waiting map[uint64]*waiting // by delivery tag
	last    uint64              // the highest tag that was confirmed
	users   int                 // calls of publish that have not returned
	retired bool                // the last of them closes it
	blocked chan struct{}       // not nil while the broker accepts no messages; closed when it does again
	freed   time.Time           // when the broker accepted messages again, zero if it never blocked the line
	cause   *amqp.Error         // why the broker closed the channel; nil if this process did
}

type waiting struct {
	tag       uint64
	size      int             // of the body
	confirmed <-chan struct{} // closed when the broker has confirmed or refused the message, or the channel was closed
	acked     func() bool     // whether the broker has confirmed it
	returned  string          // why the broker returned the message, "" if it did not; guarded by the line's mu
}

func newPublisher(connect func(ctx context.Context) (*amqp.Connection, error), timeout time.Duration, log *slog.Logger) *publisher {
	return &publisher{connect: connect, timeout: timeout, log: log, turn: make(chan struct{}, 1)}
}

// publish sends the message that build returns to the queue that build returns. It calls build when it is this message's
// turn, which may take long to come. When build returns false, publish returns errOutdated. publish owns the message's
// headers from then on; they must not be nil.
//
// It waits until patience ends for a broker that accepts no messages, and not much longer to write and for the confirmation.
func (p *publisher) publish(ctx, patience context.Context, build func() (queue string, msg amqp.Publishing, ok bool)) error {
	l, w, err := p.send(ctx, patience, build)
	if err != nil {
		return err
	}
	defer l.leave(w.tag)
	p.mu.Lock()
	sent, longest := time.Now(), max(p.timeout, p.slow)
	p.mu.Unlock()
	err = l.await(ctx, patience, w, longest)
	p.learn(l, err, longest, time.Since(sent))
	if errors.Is(err, errRefused) {
		p.retire(l)
	}
	if most := largest(err); most > 0 {
		p.mu.Lock()
		p.largest, p.noted = most, time.Now()
		p.mu.Unlock()
		return cmp.Or(p.takes(w.size), err) // others on the channel may be as they should
	}
	return err
}

// learn doubles the time for a confirmation when a line has confirmed nothing in that time, and ends that after a quick confirmation. A slow
// broker stores what it confirms too late: if each try ended too early, each message would become more and more of them.
func (p *publisher) learn(l *line, err error, longest, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case errors.Is(err, errSilent) && l.conn.IsClosed():
		p.slow = max(p.slow, min(2*longest, inHand))
	case err == nil && took < p.timeout:
		p.slow = 0
	}
}

// takes returns errTooLarge for a body that is larger than the broker takes. To find out costs all that publish their channel, so
// the publisher believes the broker's last word for a while.
func (p *publisher) takes(size int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.largest == 0 || size <= p.largest || time.Since(p.noted) > inHand {
		return nil
	}
	return fmt.Errorf("%w: it has %d bytes, and the broker's max_message_size is %d; raise that", errTooLarge, size, p.largest)
}

// largest returns the max_message_size that the broker's error tells, 0 for any other error.
func largest(err error) (n int) {
	if code(err) == amqp.PreconditionFailed {
		if _, text, ok := strings.Cut(err.Error(), "max size "); ok { // "message size 5 is larger than configured max size 4"
			_, _ = fmt.Sscan(text, &n)
		}
	}
	return n
}

// await waits for a confirmation, at most for most once the broker accepts messages. For patience see publish.
func (l *line) await(ctx, patience context.Context, w *waiting, most time.Duration) error {
	timeout := time.NewTimer(most)
	defer timeout.Stop()
	ended := false // patience
	for impatient := patience.Done(); ; {
		select {
		case <-w.confirmed:
			return l.outcome(w)
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errUnconfirmed, ctx.Err())
		case <-impatient:
			impatient, ended = nil, true
			grace := closeTimeout
			if l.isBlocked() != nil { // the broker is about to confirm messages read before the block; it has read no others
				grace = settleTime
			}
			timeout.Reset(min(most, grace))
		case <-timeout.C:
			switch {
			case ended:
				return fmt.Errorf("%w: in time", errUnconfirmed)
			case l.isBlocked() != nil:
				timeout.Reset(most)
				continue
			case l.accepting() < most: // the broker first reads the messages sent while it was blocked
				timeout.Reset(most - l.accepting())
				continue
			case !l.hasConfirmed(w.tag):
				// The broker confirms nothing: this connection is of no use any more, perhaps because of this queue.
				l.conn.CloseDeadline(time.Now())
			}
			return errSilent
		}
	}
}

// send writes a message to the broker, when it is this caller's turn and the broker takes messages.
func (p *publisher) send(ctx, patience context.Context, build func() (string, amqp.Publishing, bool)) (*line, *waiting, error) {
	for {
		l, err := p.acquire(ctx, patience)
		if err != nil {
			return nil, nil, err
		}
		if blocked := l.isBlocked(); blocked != nil {
			p.release()
			select {
			case <-blocked:
			case <-l.done:
			case <-patience.Done():
				return nil, nil, fmt.Errorf("the broker %w: %w", errBlocked, patience.Err())
			case <-ctx.Done():
				return nil, nil, fmt.Errorf("the broker %w: %w", errBlocked, ctx.Err())
			}
			continue
		}
		defer p.release()
		queue, msg, ok := build()
		if !ok {
			return nil, nil, errOutdated
		}
		tag := l.publish.GetNextPublishSeqNo()
		w := &waiting{tag: tag, size: len(msg.Body)}
		if err := p.takes(w.size); err != nil {
			return nil, nil, err
		}
		mark(msg.Headers, tag)
		if err := publishable(&msg, queue, l.conn.Config.FrameSize); err != nil {
			return nil, nil, err
		}
		l.add(tag, w)
		written := make(chan struct{})
		defer close(written)
		defer context.AfterFunc(patience, func() {
			if !within(closeTimeout, written) { // the broker reads no more
				l.conn.CloseDeadline(time.Now())
			}
		})()
		// mandatory: the broker returns a message to a queue that is gone, and then confirms it.
		c, err := l.publish.PublishWithDeferredConfirmWithContext(ctx, "", queue, true, false, msg)
		if err != nil {
			l.leave(tag)
			return nil, nil, err
		}
		w.confirmed, w.acked = c.Done(), c.Acked
		return l, w, nil
	}
}

// declare runs f with a channel on which nobody publishes. It replaces a channel that an earlier error closed.
func (p *publisher) declare(ctx context.Context, f func(*amqp.Channel) error) error {
	l, err := p.acquire(ctx, ctx)
	if err != nil {
		return err
	}
	defer p.release()
	defer guard(context.WithoutCancel(ctx), l.conn)() // other callers wait on it, whose contexts have not ended
	if l.declare == nil || l.declare.IsClosed() {
		if l.declare, err = l.conn.Channel(); err != nil {
			return err
		}
	}
	return f(l.declare)
}

// acquire waits for the caller's turn and returns a line that is up. release ends the turn.
func (p *publisher) acquire(ctx, patience context.Context) (*line, error) {
	if err := p.await(ctx, patience); err != nil {
		return nil, err
	}
	if l := p.up(); l != nil {
		return l, nil
	}
	ctx, end := both(ctx, patience)
	defer end()
	l, err := p.open(ctx)
	if err == nil && !p.use(l) {
		closeConnection(l.conn)
		err = amqp.ErrClosed
	}
	if err != nil {
		p.release()
		return nil, err
	}
	return l, nil
}

// await waits for the caller's turn. Once patience has ended, it waits only for callers that have a line and soon return.
func (p *publisher) await(ctx, patience context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-patience.Done():
	}
	if p.up() == nil {
		return fmt.Errorf("waiting for a connection: %w", patience.Err())
	}
	soon, end := context.WithTimeout(ctx, closeTimeout)
	defer end()
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-soon.Done():
		return fmt.Errorf("waiting to publish: %w", patience.Err())
	}
}

// both returns a context that ends with either of two.
func both(ctx, other context.Context) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancel(ctx)
	stop := context.AfterFunc(other, end)
	return ctx, func() { stop(); end() }
}

// up returns the line if its channel is open, else nil.
func (p *publisher) up() *line {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.line != nil {
		select {
		case <-p.line.done:
			go closeConnection(p.line.conn) // perhaps only its channel is closed
			p.line = nil
		default:
		}
	}
	return p.line
}

func (p *publisher) use(l *line) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.line = l
	}
	return !p.closed
}

func (p *publisher) release() { <-p.turn }

// retire makes later publishings use a new line, unless this one is new itself. A channel of RabbitMQ 3.10 remembers the
// leader of a quorum queue from its first publishing there. If that leader was lost just then, the channel refuses every
// message for the queue until the leader's node is back.
func (p *publisher) retire(l *line) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.line == l && time.Since(l.opened) > retireAfter {
		p.line = nil
		l.mu.Lock()
		defer l.mu.Unlock()
		l.retired = true
	}
}

const retireAfter = 5 * time.Second

func (p *publisher) open(ctx context.Context) (*line, error) {
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return nil, amqp.ErrClosed
	}
	conn, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer guard(ctx, conn)()
	l := &line{conn: conn, log: p.log, done: make(chan struct{}), returnsNoted: make(chan chan struct{}), opened: time.Now(), waiting: map[uint64]*waiting{}}
	if l.publish, err = conn.Channel(); err == nil {
		err = l.publish.Confirm(false)
	}
	if err != nil {
		closeConnection(conn)
		return nil, fmt.Errorf("open a channel with confirms: %w", err)
	}
	go l.read(
		l.publish.NotifyReturn(make(chan amqp.Return, 64)),
		conn.NotifyBlocked(make(chan amqp.Blocking, 8)),
		l.publish.NotifyClose(make(chan *amqp.Error, 1)),
	)
	return l, nil
}

// read handles the broker's notifications until the channel closes.
func (l *line) read(returns <-chan amqp.Return, blocked <-chan amqp.Blocking, closed <-chan *amqp.Error) {
	for {
		select {
		case r, ok := <-returns:
			if !ok {
				returns = nil
				continue
			}
			l.returned(r)
		case b, ok := <-blocked:
			if !ok {
				blocked = nil
				continue
			}
			l.block(b.Active)
			if b.Active {
				l.log.Warn("the broker accepts no messages: postponing waits, handlers go on", "reason", b.Reason)
			} else {
				l.log.Info("the broker accepts messages again")
			}
		case noted := <-l.returnsNoted:
			l.note(returns)
			close(noted)
		case cause := <-closed:
			l.note(returns) // the messages may have been confirmed before the channel closed
			l.end(cause)
			return
		}
	}
}

// note handles the returns that have come.
func (l *line) note(returns <-chan amqp.Return) {
	for len(returns) > 0 {
		if r, ok := <-returns; ok {
			l.returned(r)
		}
	}
}

func (l *line) add(tag uint64, w *waiting) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting[tag] = w
	l.users++
}

// leave removes the publishing of a tag that add added. The last one closes a retired line.
func (l *line) leave(tag uint64) {
	l.mu.Lock()
	delete(l.waiting, tag)
	l.users--
	last := l.retired && l.users == 0
	l.mu.Unlock()
	if last {
		closeConnection(l.conn)
	}
}

func (l *line) returned(r amqp.Return) {
	tag, ok := marked(r.Headers)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.waiting[tag]; w != nil {
		w.returned = r.ReplyText
	}
}

// outcome returns the error of a confirmed or refused publishing, nil if the broker has stored it. The confirmations of
// NotifyPublish would be wrong: the client sorts them, so that a missing one holds up all others. It also turns a refusal
// that came before its turn into an acknowledgement when the next confirmation is for several messages at once.
func (l *line) outcome(w *waiting) error {
	if !w.acked() && l.publish.IsClosed() {
		<-l.done
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.cause != nil {
			return fmt.Errorf("%w: %w", errUnconfirmed, l.cause)
		}
		return fmt.Errorf("%w: the connection was closed", errUnconfirmed)
	}
	// The client handles a return before the confirmation that follows it, but read may not have noted it yet.
	noted := make(chan struct{})
	select {
	case l.returnsNoted <- noted:
		<-noted
	case <-l.done:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = max(l.last, w.tag)
	switch {
	case w.returned != "":
		return fmt.Errorf("%w: %s", errUnroutable, strings.ToLower(w.returned))
	case !w.acked():
		return errRefused
	}
	return nil
}

// hasConfirmed reports whether the broker has confirmed a message published after the tag.
func (l *line) hasConfirmed(tag uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last > tag
}

func (l *line) block(active bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case active && l.blocked == nil:
		l.blocked = make(chan struct{})
	case !active && l.blocked != nil:
		close(l.blocked)
		l.blocked, l.freed = nil, time.Now()
	}
}

// accepting returns for how long the broker has accepted messages since it was blocked last.
func (l *line) accepting() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.freed)
}

func (l *line) isBlocked() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.blocked
}

// end notes why the channel was closed. cause is nil when this process closed the connection.
func (l *line) end(cause *amqp.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cause = cause
	close(l.done)
}

// close ends the connection. Publishings that wait fail, and so do later ones.
func (p *publisher) close() {
	p.mu.Lock()
	l := p.line
	p.closed, p.line = true, nil
	p.mu.Unlock()
	if l != nil {
		closeConnection(l.conn)
		<-l.done
	}
}
