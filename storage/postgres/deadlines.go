package postgres

import (
	"context"
	"sync"
	"time"
)

// deadlines are contexts that end when a time is over, or up to an eighth of it before: what begins at about the same time
// has one in common, for to make one takes longer than to decide.
type deadlines struct {
	after time.Duration

	mu   sync.Mutex
	ctx  context.Context
	made time.Time
}

func (d *deadlines) context() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := time.Now(); d.ctx == nil || now.Sub(d.made) > d.after/8 {
		ctx, cancel := context.WithTimeout(context.Background(), d.after)
		context.AfterFunc(ctx, cancel)
		d.ctx, d.made = ctx, now
	}
	return d.ctx
}
