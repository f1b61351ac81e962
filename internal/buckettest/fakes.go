package buckettest

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drip-go/drip"
)

// Hooked is a bucket that calls Before at the n-th call of Admit, Settle, Renew or Throttled. An error of Before is the
// answer of that call, which does not reach the bucket.
type Hooked struct {
	*drip.Bucket
	Before func(ctx context.Context, method string, n int) error

	mu    sync.Mutex
	calls map[string]int
}

func (h *Hooked) before(ctx context.Context, method string) error {
	h.mu.Lock()
	if h.calls == nil {
		h.calls = map[string]int{}
	}
	h.calls[method]++
	n := h.calls[method]
	h.mu.Unlock()
	return h.Before(ctx, method, n)
}

// Admit implements drip.Admitter.
func (h *Hooked) Admit(ctx context.Context, entity string, r drip.Request) (drip.Admission, error) {
	if err := h.before(ctx, "Admit"); err != nil {
		return drip.Admission{}, err
	}
	return h.Bucket.Admit(ctx, entity, r)
}

// Settle implements drip.Admitter.
func (h *Hooked) Settle(ctx context.Context, entity string, l drip.Lease, cost int, costs ...drip.Costs) error {
	if err := h.before(ctx, "Settle"); err != nil {
		return err
	}
	return h.Bucket.Settle(ctx, entity, l, cost, costs...)
}

// Renew implements drip.Admitter.
func (h *Hooked) Renew(ctx context.Context, entity string, l drip.Lease) (drip.Lease, error) {
	if err := h.before(ctx, "Renew"); err != nil {
		return l, err
	}
	return h.Bucket.Renew(ctx, entity, l)
}

// Throttled closes the entity, as [drip.Bucket.Throttled] does.
func (h *Hooked) Throttled(ctx context.Context, entity string, retryAfter time.Duration) error {
	if err := h.before(ctx, "Throttled"); err != nil {
		return err
	}
	return h.Bucket.Throttled(ctx, entity, retryAfter)
}

// NoAnswer waits until the context of a call ends.
func NoAnswer(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// Plain is a limiter without tickets. Delays has its answers; nil lets everything run.
type Plain struct {
	Delays func(entity string) (time.Duration, error)
	Out    atomic.Int64 // tokens
}

// GetDelay implements worker.Limiter.
func (p *Plain) GetDelay(_ context.Context, entity string) (delay time.Duration, err error) {
	if p.Delays != nil {
		delay, err = p.Delays(entity)
	}
	if delay == 0 && err == nil {
		p.Out.Add(1)
	}
	return delay, err
}

// ReturnToken implements worker.Limiter.
func (p *Plain) ReturnToken(context.Context, string) error {
	p.Out.Add(-1)
	return nil
}
