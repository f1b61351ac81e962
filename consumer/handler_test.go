package consumer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

type postponed []time.Duration

func (p *postponed) Postpone(_ context.Context, _ *amqp.Delivery, delay time.Duration) error {
	*p = append(*p, delay)
	return nil
}

func TestLimit(t *testing.T) {
	failure := errors.New("failure")
	shop := func(d *amqp.Delivery) (string, error) { return d.MessageId, nil }
	for name, c := range map[string]struct {
		delay     time.Duration // by the limiter
		entity    EntityFunc
		handler   error
		header    amqp.Table
		want      error
		permanent bool
		handled   bool
		postponed int
	}{
		"runs":           {handled: true},
		"fails":          {handled: true, handler: failure, want: failure},
		"postponed":      {delay: time.Second, postponed: 1},
		"slot is past":   {delay: -time.Second, postponed: 1},
		"throttled":      {handled: true, handler: Throttled(time.Minute, failure), postponed: 1},
		"entity fails":   {entity: func(*amqp.Delivery) (string, error) { return "", failure }, want: ErrEntity},
		"entity panics":  {entity: func(*amqp.Delivery) (string, error) { panic("oh") }, want: ErrEntity},
		"no entity":      {entity: func(*amqp.Delivery) (string, error) { return "", nil }, want: ErrEntity, permanent: true},
		"unreadable":     {entity: func(*amqp.Delivery) (string, error) { return "", Permanent(failure) }, want: ErrEntity, permanent: true},
		"came back soon": {header: amqp.Table{headerNote: fmt.Sprint("due=", time.Now().Add(time.Minute).UnixMicro())}, postponed: 1},
	} {
		t.Run(name, func(t *testing.T) {
			if c.entity == nil {
				c.entity = shop
			}
			var p postponed
			handled := false
			limiter := delayed(func() time.Duration { return c.delay })
			h := Limit(limiter, c.entity, &p)(HandlerFunc(func(_ context.Context, d *amqp.Delivery) error {
				handled = true
				if len(d.Headers) != 0 {
					t.Errorf("the handler sees our headers: %v", d.Headers)
				}
				return c.handler
			}))
			err := h.Handle(t.Context(), &amqp.Delivery{MessageId: "shop", Headers: c.header})
			if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("Handle = %v, want %v", err, c.want)
			}
			if IsPermanent(err) != c.permanent {
				t.Errorf("IsPermanent(%v) is %v", err, !c.permanent)
			}
			if handled != c.handled || len(p) != c.postponed {
				t.Errorf("handled %v, postponed %v", handled, p)
			}
			if n := limiter.Out.Load(); n != 0 {
				t.Errorf("%d tokens were not returned", n)
			}
		})
	}
}

// A loop that requeues a message at once after an error would spin, and a broker that limits redeliveries would drop the
// message.
func TestLimitWaitsForTheLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, failure := time.Now(), errors.New("the storage is away")
		l := &free{Delays: func(string) (time.Duration, error) {
			if time.Since(began) < time.Minute {
				return 0, failure
			}
			return 0, nil
		}}
		var handled time.Duration
		h := Limit(l, byID, new(postponed))(HandlerFunc(func(context.Context, *amqp.Delivery) error {
			handled = time.Since(began)
			return nil
		}))
		if err := h.Handle(t.Context(), &amqp.Delivery{MessageId: "shop"}); err != nil || handled < time.Minute || handled > 2*time.Minute {
			t.Errorf("handled after %v, %v; want soon after the minute of the outage", handled, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if err := h.Handle(ctx, &amqp.Delivery{MessageId: "shop"}); !errors.Is(err, failure) || time.Since(began) != time.Second {
			t.Errorf("Handle = %v after %v, want the failure when the context ends", err, time.Since(began))
		}
	})
}

// A loop may count on what the broker notes, as long as the message has made no trip of ours.
func TestLimitLeavesTheBrokersNotes(t *testing.T) {
	notes := amqp.Table{"x-death": []any{amqp.Table{"count": int64(4)}}, "x-delivery-count": int64(7)}
	h := Limit(&free{}, byID, new(postponed))(HandlerFunc(func(_ context.Context, d *amqp.Delivery) error {
		if !reflect.DeepEqual(d.Headers, notes) {
			t.Errorf("the handler sees %v, want %v", d.Headers, notes)
		}
		return nil
	}))
	must(t, h.Handle(t.Context(), &amqp.Delivery{MessageId: "shop", Headers: notes}))
}

// Limit panics at once, not with the first message that needs what is missing.
func TestLimitWithoutAnArgument(t *testing.T) {
	request := func(*amqp.Delivery) drip.Request { return drip.Request{} }
	for want, limit := range map[string]func(){
		"consumer: the Limiter is missing":                          func() { Limit(nil, byID, new(postponed)) },
		"consumer: the Entity is missing":                           func() { Limit(&free{}, nil, new(postponed)) },
		"consumer: the Postponer is missing":                        func() { Limit(&free{}, byID, (*DelayQueues)(nil)) },
		"consumer: the Request needs a Limiter that is an Admitter": func() { LimitRequests(&free{}, byID, request, new(postponed)) },
	} {
		func() {
			defer func() {
				if v := recover(); fmt.Sprint(v) != want {
					t.Errorf("it panics with %v, want %s", v, want)
				}
			}()
			limit()
		}()
	}
}

func TestLimitReturnsTheTokenOfAPanicAndOfACancelledHandler(t *testing.T) {
	l := &returning{}
	ctx, cancel := context.WithCancel(t.Context())
	h := Limit(l, byID, new(postponed))(HandlerFunc(func(context.Context, *amqp.Delivery) error {
		cancel()
		panic("oh")
	}))
	func() {
		defer func() {
			if recover() != "oh" {
				t.Error("the panic did not reach the caller")
			}
		}()
		h.Handle(ctx, &amqp.Delivery{MessageId: "shop"})
	}()
	if out := l.Out.Load(); out != 0 || l.dead {
		t.Errorf("%d tokens are out; the context of the return had ended: %v", out, l.dead)
	}
}

// A handler that returns an error has not panicked, even if its error does, or tells of a panic elsewhere.
func TestLimitPanicsForItsHandlerAlone(t *testing.T) {
	soon := func(*amqp.Delivery) drip.Request { return drip.Request{Deadline: time.Now().Add(time.Minute)} }
	for _, failure := range []error{(*typedError)(nil), Throttled(time.Hour, (*typedError)(nil)), &PanicError{Value: "oh"}} {
		h := LimitRequests(buckettest.New(t, drip.Options{}), byID, soon, new(postponed))(HandlerFunc(func(context.Context, *amqp.Delivery) error { return failure }))
		if err := h.Handle(t.Context(), &amqp.Delivery{MessageId: "shop"}); !errors.As(err, new(*PanicError)) {
			t.Errorf("Handle = %v", err)
		}
	}
}

// returning notes whether the context of the last ReturnToken had ended.
type returning struct {
	free
	dead bool
}

func (l *returning) ReturnToken(ctx context.Context, entity string) error {
	l.dead = ctx.Err() != nil
	return l.free.ReturnToken(ctx, entity)
}

func TestNewNamesTheWrongField(t *testing.T) {
	good := Options{
		URL: "amqp://user:secret@localhost/", Queue: "orders", Limiter: &free{}, Entity: byID, Handler: &ledger{},
	}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want  string
		spoil func(*Options)
	}{
		{"consumer: Options.Limiter is missing", func(o *Options) { o.Limiter = nil }},
		{"consumer: Options.Limiter is missing", func(o *Options) { o.Limiter = (*struct{ *drip.Bucket })(nil) }},
		{"consumer: Options.Entity is missing", func(o *Options) { o.Entity = nil }},
		{"consumer: Options.Handler is missing", func(o *Options) { o.Handler = nil }},
		{"consumer: Options.Handler is missing", func(o *Options) { o.Handler = HandlerFunc(nil) }},
		{"consumer: Options.Prefetch is -1; it must be above 0, or 0 for the default", func(o *Options) { o.Prefetch = -1 }},
		{"consumer: Options.Attempts is -1; it must not be below 0", func(o *Options) { o.Attempts = -1 }},
		{"consumer: Options.DrainTime is -1s; it must be above 0, or 0 for the default", func(o *Options) { o.DrainTime = -time.Second }},
		{"consumer: Options.Prefetch and Options.Hold may be at most 65535", func(o *Options) { o.Hold = 65536 }},
		{"consumer: Options.Queue is empty", func(o *Options) { o.Queue = "" }},
		{`consumer: Options.Queue is "orders\n"; the broker removes line breaks from the names of queues`, func(o *Options) { o.Queue = "orders\n" }},
		{"consumer: Options.URL is not an AMQP URL such as amqp://user:password@host:5672/vhost, with the password escaped", func(o *Options) { o.URL = "amqp://user:12/secret@localhost/" }},
		{`consumer: Options.QueueType is "stream"; it must be "quorum" or "classic"`, func(o *Options) { o.QueueType = "stream" }},
		{"consumer: Options.TLS is set, and Options.URL is one without TLS; it must begin with amqps://", func(o *Options) {
			o.URL, o.TLS = "amqp://localhost/", &tls.Config{MinVersion: tls.VersionTLS13}
		}},
		{"consumer: Options.Request needs a Limiter that is an Admitter", func(o *Options) {
			o.Request = func(*amqp.Delivery) drip.Request { return drip.Request{} }
		}},
		{"consumer: Options.Cost needs a Limiter that is an Admitter", func(o *Options) {
			o.Cost = func(*amqp.Delivery) int { return 1 }
		}},
		{"consumer: Options.URL is missing", func(o *Options) { o.URL = "" }},
	} {
		o := good
		c.spoil(&o)
		if _, err := New(o); err == nil || err.Error() != c.want {
			t.Errorf("New = %v, want %s", err, c.want)
		}
	}
}
