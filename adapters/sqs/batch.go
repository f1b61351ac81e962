package dripsqs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/drip-go/drip/internal/sleep"
)

const (
	mostEntries = 10 // of a call of SQS, which costs as much as one with a single entry
	mostCalls   = 2  // under way
)

// batches gathers entries for calls of SQS. An entry goes at once unless mostCalls are under way; none waits for others to come.
type batches[E any] struct {
	call    func(ctx context.Context, entries []E) ([]types.BatchResultErrorEntry, error)
	number  func(e *E, id *string) // sets the ID by which the call tells which entries failed
	running *sync.WaitGroup

	harmless bool // to repeat a call that SQS may have done

	mu      sync.Mutex
	waiting []*entry[E]
	calls   int
}

type entry[E any] struct {
	ctx  context.Context // of the caller, who leaves when it ends
	e    E
	done chan error
	sent bool // guarded by mu
}

// errMomentary is the error of an entry that failed in SQS or on the way, and not because of what is in it.
var errMomentary = errors.New("SQS failed")

// do waits for callTimeout at most until its own call begins, and then for the end of that. Meanwhile it tries an entry again that
// failed in SQS or on the way. The client does that only for whole calls, and for a second or two.
func (b *batches[E]) do(ctx context.Context, e E) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for pause := 100 * time.Millisecond; ; pause *= 2 {
		err := b.try(ctx, e)
		if !errors.Is(err, errMomentary) || !sleep.For(ctx, pause) {
			return err
		}
	}
}

func (b *batches[E]) try(ctx context.Context, e E) error {
	w := &entry[E]{ctx: ctx, e: e, done: make(chan error, 1)}
	b.mu.Lock()
	b.waiting = append(b.waiting, w)
	if b.calls < mostCalls {
		b.calls++
		b.running.Go(b.run)
	}
	b.mu.Unlock()
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
	}
	b.mu.Lock()
	sent := w.sent
	b.mu.Unlock()
	if sent { // nobody knows yet whether SQS does it
		return <-w.done
	}
	return ctx.Err()
}

func (b *batches[E]) run() {
	for {
		b.mu.Lock()
		var taken []*entry[E]
		for len(b.waiting) > 0 && len(taken) < mostEntries {
			if b.waiting[0].ctx.Err() == nil {
				b.waiting[0].sent = true
				taken = append(taken, b.waiting[0])
			}
			b.waiting = b.waiting[1:]
		}
		if len(taken) == 0 {
			b.calls--
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		b.send(taken)
	}
}

func (b *batches[E]) send(taken []*entry[E]) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(taken[0].ctx), callTimeout)
	defer cancel()
	entries := make([]E, len(taken))
	for i, w := range taken {
		entries[i] = w.e
		b.number(&entries[i], aws.String(strconv.Itoa(i)))
	}
	failed, err := b.call(ctx, entries)
	refused := smithy.APIError(nil)
	switch {
	case err == nil:
	case !errors.As(err, &refused):
		if network := (*net.OpError)(nil); b.harmless || errors.As(err, &network) && network.Op == "dial" {
			err = fmt.Errorf("%w: %w", errMomentary, err)
		}
	case len(taken) > 1:
		// SQS may refuse all for one of them, or because they are too large together.
		for _, w := range taken {
			if err := w.ctx.Err(); err != nil {
				w.done <- err
			} else {
				b.send([]*entry[E]{w})
			}
		}
		return
	}
	errs := slices.Repeat([]error{err}, len(taken))
	for _, f := range failed {
		if i, err := strconv.Atoi(aws.ToString(f.Id)); err == nil && i < len(errs) {
			errs[i] = fmt.Errorf("%s: %s", aws.ToString(f.Code), aws.ToString(f.Message))
			if !f.SenderFault {
				errs[i] = fmt.Errorf("%w: %w", errMomentary, errs[i])
			}
		}
	}
	for i, w := range taken {
		w.done <- errs[i]
	}
}

func (l *Limit) sends(url string, running *sync.WaitGroup) *batches[types.SendMessageBatchRequestEntry] {
	return &batches[types.SendMessageBatchRequestEntry]{
		call: func(ctx context.Context, entries []types.SendMessageBatchRequestEntry) ([]types.BatchResultErrorEntry, error) {
			out, err := l.client.SendMessageBatch(ctx, &sqs.SendMessageBatchInput{QueueUrl: &url, Entries: entries})
			if err != nil {
				return nil, err
			}
			return out.Failed, nil
		},
		number:  func(e *types.SendMessageBatchRequestEntry, id *string) { e.Id = id },
		running: running,
	}
}

func (l *Limit) deletions(url string, running *sync.WaitGroup) *batches[types.DeleteMessageBatchRequestEntry] {
	return &batches[types.DeleteMessageBatchRequestEntry]{
		call: func(ctx context.Context, entries []types.DeleteMessageBatchRequestEntry) ([]types.BatchResultErrorEntry, error) {
			out, err := l.client.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: &url, Entries: entries})
			if err != nil {
				return nil, err
			}
			return out.Failed, nil
		},
		number:  func(e *types.DeleteMessageBatchRequestEntry, id *string) { e.Id = id },
		running: running, harmless: true,
	}
}
