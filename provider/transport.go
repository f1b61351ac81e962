package provider

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/drip-go/drip"
)

// Throttler learns of refused calls. *drip.Bucket is one.
type Throttler interface {
	// Throttled closes the entity for retryAfter.
	Throttled(ctx context.Context, entityID string, retryAfter time.Duration) error
}

// Transport is an http.RoundTripper that sends requests with another. When the provider refuses a request because of
// its limit, Transport closes the request's entity for as long as the provider wants. That holds in all processes that
// share the bucket's storage. If responses announce a rate, such as by RateLimit-Policy, Transport tells the bucket
// when it changes; a bucket with drip.Options.Follow then keeps to it. Transport passes the response on unchanged. It
// is safe for concurrent use, and so must its functions be; do not change its fields once it is used, nor copy it.
//
// Transport closes the same entity whichever limit refused the call. If responses tell that it was a shared limit, such
// as the app's, use Read in the handler instead, and return worker.ThrottledShared: the entity keeps its capacity.
type Transport struct {
	// Bucket learns of refused calls. Required.
	Bucket Throttler

	// Base sends the requests. Defaults to http.DefaultTransport.
	Base http.RoundTripper

	// Entity tells whose limit a request falls under. Defaults to the entity of its context, set by WithEntity. With
	// package consumer: consumer.OperationOf(r.Context()).Entity.
	Entity func(r *http.Request) string

	// Wait is how long to wait after a refusal without a time to wait, such as Preset.Wait. Defaults to a second.
	Wait time.Duration

	// Bodies makes Transport read JSON bodies of responses 200 and 403, at most the first 64 KiB, before it passes the
	// response on. Set it for Shopify's GraphQL, which refuses calls with 200, and for Salesforce and GitHub, whose
	// bodies explain a 403. Defaults to the status and the header alone.
	Bodies bool

	// Transport calls OnThrottled after each refused call, with the bucket's error if telling it failed. Defaults to
	// logging that error.
	OnThrottled func(r *http.Request, s Status, err error)

	announced announced
}

// tellTimeout bounds telling the bucket, which the response has to wait for.
const tellTimeout = 2 * time.Second

// RoundTrip implements http.RoundTripper. After a refused call it tells the bucket before it returns, which takes at
// most two seconds. It passes an error of the bucket to OnThrottled and does not return it. If the announced rate has
// changed, it tells that before, in two more seconds at most, and logs an error of the bucket.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.Bucket == nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, errors.New("provider: Transport.Bucket is required")
	}
	response, err := t.base().RoundTrip(r)
	if err != nil || response == nil {
		return response, err
	}
	var begin []byte
	if t.Bodies && tells(response) {
		begin = peek(response)
	}
	s := Parse(response.StatusCode, response.Header, begin, time.Now())
	t.announce(r, &s)
	if !s.Throttled {
		return response, nil
	}
	if s.RetryAfter == 0 {
		s.RetryAfter = t.Wait
		if t.Wait <= 0 {
			s.RetryAfter = time.Second
		}
	}
	// The client may have given up; the others want to know all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), tellTimeout)
	defer cancel()
	entity := t.entity(r)
	err = t.Bucket.Throttled(ctx, entity, s.RetryAfter)
	switch {
	case t.OnThrottled != nil:
		t.OnThrottled(r, s, err)
	case err != nil:
		slog.ErrorContext(ctx, "the bucket was not told that the provider refuses calls", "entity", entity, "error", err)
	}
	return response, nil
}

// announce tells the bucket of an announced rate.
func (t *Transport) announce(r *http.Request, s *Status) {
	bucket, ok := t.Bucket.(announcer)
	entity, perSecond := t.entity(r), s.PerSecond()
	if !ok || !t.announced.changed(entity, perSecond, time.Now()) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), tellTimeout)
	defer cancel()
	if err := bucket.Announced(ctx, entity, perSecond, announcedFor); err != nil {
		if !errors.Is(err, drip.ErrNoEntity) && !errors.Is(err, drip.ErrNoShared) { // which another try would not change
			t.announced.failed(entity)
		}
		slog.ErrorContext(ctx, "the bucket was not told of the rate that the provider announces", "entity", entity, "error", err)
	}
}

// CloseIdleConnections is for http.Client.CloseIdleConnections.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

func (t *Transport) base() http.RoundTripper {
	if t.Base != nil {
		return t.Base
	}
	return http.DefaultTransport
}

func (t *Transport) entity(r *http.Request) string {
	if t.Entity != nil {
		return t.Entity(r)
	}
	return EntityOf(r.Context())
}

const mostBody = 64 << 10

// tells reports whether the body may say that the call was refused. Such bodies are short, and no streams.
func tells(r *http.Response) bool {
	if r.StatusCode != http.StatusOK && r.StatusCode != http.StatusForbidden || r.Body == nil || r.ContentLength > mostBody {
		return false
	}
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	media = strings.ToLower(strings.TrimSpace(media))
	return media == "application/json" || strings.HasSuffix(media, "+json")
}

// peek reads the beginning of the body, and puts it back.
func peek(r *http.Response) []byte {
	begin, err := io.ReadAll(io.LimitReader(r.Body, mostBody))
	rest := io.Reader(r.Body)
	if err != nil {
		rest = failed{err}
	}
	r.Body = body{io.MultiReader(bytes.NewReader(begin), rest), r.Body}
	return begin
}

type body struct {
	io.Reader
	io.Closer
}

type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }

type entityKey struct{}

// WithEntity returns a context for requests that fall under the limit of an entity.
func WithEntity(ctx context.Context, entityID string) context.Context {
	return context.WithValue(ctx, entityKey{}, entityID)
}

// EntityOf returns the entity that WithEntity has set, or "" for any other context.
func EntityOf(ctx context.Context) string {
	id, _ := ctx.Value(entityKey{}).(string)
	return id
}
