package provider

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
)

type told struct {
	entity     string
	retryAfter time.Duration
}

type recorder struct {
	told []told
	err  error
	ctx  error // of the last call's context
}

func (r *recorder) Throttled(ctx context.Context, entity string, retryAfter time.Duration) error {
	r.told = append(r.told, told{entity, retryAfter})
	r.ctx = ctx.Err()
	return r.err
}

type roundTripper func(r *http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func respond(code int, lines, body string) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: code, Header: header(lines), Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: r,
		}, nil
	})
}

func TestTransport(t *testing.T) {
	const json = "Content-Type: application/json; charset=utf-8\n"
	const throttled = `{"errors":[{"extensions":{"code":"THROTTLED"}}],"extensions":{"cost":{"requestedQueryCost":110,"throttleStatus":{"maximumAvailable":1000,"currentlyAvailable":10,"restoreRate":50}}}}`
	for name, c := range map[string]struct {
		code        int
		lines, body string
		bodies      bool
		wait        time.Duration
		want        time.Duration // 0: not told
	}{
		"fine":                   {200, "", "ok", true, 0, 0},
		"429":                    {429, "Retry-After: 7", "no", false, 0, 7 * time.Second},
		"429 that says nothing":  {429, "", "no", false, 0, time.Second},
		"429 of Airtable":        {429, "", "no", false, named(t, "Airtable").Wait, 30 * time.Second},
		"429 that says 0":        {429, "Retry-After: 0", "no", false, named(t, "Airtable").Wait, 30 * time.Second},
		"503":                    {503, "Retry-After: 7", "no", false, 0, 7 * time.Second},
		"403":                    {403, json + "X-RateLimit-Remaining: 5", `{"message":"no"}`, true, 0, 0},
		"GraphQL":                {200, json, throttled, true, 0, 2 * time.Second},
		"GraphQL, not looked at": {200, json, throttled, false, 0, 0},
		"GraphQL, its own type":  {200, "Content-Type: Application/GraphQL-Response+JSON", throttled, true, 0, 2 * time.Second},
		"a stream of JSON":       {200, "Content-Type: application/x-ndjson", throttled, true, 0, 0},
		"not JSON":               {200, "Content-Type: text/html", throttled, true, 0, 0},
		"long":                   {200, json, throttled + strings.Repeat(" ", 2*mostBody), true, 0, 0},
		"Salesforce":             {403, json, `[{"errorCode":"REQUEST_LIMIT_EXCEEDED"}]`, true, time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			var r recorder
			var seen []Status
			transport := &Transport{
				Bucket: &r, Base: respond(c.code, c.lines, c.body), Wait: c.wait, Bodies: c.bodies,
				OnThrottled: func(_ *http.Request, s Status, err error) {
					if err != nil {
						t.Error(err)
					}
					seen = append(seen, s)
				},
			}
			request, err := http.NewRequestWithContext(WithEntity(t.Context(), "shop"), http.MethodGet, "http://example.com", nil)
			ok(t, err)
			response, err := transport.RoundTrip(request)
			ok(t, err)
			body, err := io.ReadAll(response.Body)
			if err != nil || string(body) != c.body || response.StatusCode != c.code || response.Request != request {
				t.Errorf("the response was changed: %d %q %v", response.StatusCode, body, err)
			}
			switch {
			case c.want == 0:
				if len(r.told)+len(seen) > 0 {
					t.Errorf("told %v", r.told)
				}
			case len(r.told) != 1 || r.told[0] != told{"shop", c.want} || len(seen) != 1 || seen[0].RetryAfter != c.want:
				t.Errorf("told %v, reported %v, want %v", r.told, seen, c.want)
			}
		})
	}
}

// A body that fails half way fails for its reader, and is closed by it.
func TestTransportPassesBodiesOn(t *testing.T) {
	failure := errors.New("broken pipe")
	for name, source := range map[string]func() io.Reader{
		"in pieces": func() io.Reader { return iotest.OneByteReader(strings.NewReader(`{"a":1}`)) },
		"long":      func() io.Reader { return strings.NewReader(strings.Repeat("x", mostBody+5)) },
		"fails":     func() io.Reader { return io.MultiReader(strings.NewReader(`{"a`), iotest.ErrReader(failure)) },
		"fails later": func() io.Reader {
			return io.MultiReader(strings.NewReader(strings.Repeat("x", mostBody+5)), iotest.ErrReader(failure))
		},
	} {
		t.Run(name, func(t *testing.T) {
			closed := 0
			transport := &Transport{Bucket: &recorder{}, Bodies: true, Base: roundTripper(func(*http.Request) (*http.Response, error) {
				b := struct {
					io.Reader
					io.Closer
				}{source(), closer(func() error { closed++; return failure })}
				return &http.Response{StatusCode: 200, Header: header("Content-Type: application/json"), Body: b, ContentLength: -1}, nil
			})}
			response, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil))
			ok(t, err)
			want, wantErr := io.ReadAll(source())
			got, err := io.ReadAll(response.Body)
			if !bytes.Equal(got, want) || !errors.Is(err, wantErr) {
				t.Errorf("read %d bytes, %v, want %d, %v", len(got), err, len(want), wantErr)
			}
			if err := response.Body.Close(); closed != 1 || !errors.Is(err, failure) {
				t.Errorf("closed %d times: %v", closed, err)
			}
		})
	}
}

type closer func() error

func (c closer) Close() error { return c() }

func TestTransportReportsTheBucketsError(t *testing.T) {
	failure := errors.New("no route to storage")
	bucket := &recorder{err: failure}
	var reported error
	transport := &Transport{
		Bucket: bucket, Base: respond(429, "", "no"),
		Entity:      func(r *http.Request) string { return r.Host },
		OnThrottled: func(_ *http.Request, _ Status, err error) { reported = err },
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the client has given up, the bucket is told all the same
	request := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://shop.example/", nil)
	response, err := transport.RoundTrip(request)
	if err != nil || response.StatusCode != 429 {
		t.Errorf("RoundTrip = %v, %v", response, err)
	}
	if !errors.Is(reported, failure) || bucket.ctx != nil || bucket.told[0].entity != "shop.example" {
		t.Errorf("reported %v; told %v with a context that is %v", reported, bucket.told, bucket.ctx)
	}

	var log bytes.Buffer
	old := slog.Default()
	defer slog.SetDefault(old)
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	transport.OnThrottled = nil
	if _, err := transport.RoundTrip(request); err != nil {
		t.Error(err)
	}
	if got := log.String(); !strings.Contains(got, `entity=shop.example error="no route to storage"`) {
		t.Errorf("logged %q", got)
	}

	// A request of nobody: a real bucket says so.
	b := buckettest.New(t, drip.Options{})
	transport = &Transport{Bucket: b, Base: respond(429, "", "no"), OnThrottled: func(_ *http.Request, _ Status, err error) { reported = err }}
	if _, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil)); err != nil || !errors.Is(reported, drip.ErrNoEntity) {
		t.Errorf("RoundTrip: %v; reported %v, want ErrNoEntity", err, reported)
	}
}

func TestTransportWithoutABucket(t *testing.T) {
	closed := false
	request := httptest.NewRequest(http.MethodPost, "/", nil)
	request.Body = struct {
		io.Reader
		io.Closer
	}{strings.NewReader("x"), closer(func() error { closed = true; return nil })}
	if _, err := new(Transport).RoundTrip(request); err == nil || !strings.Contains(err.Error(), "Transport.Bucket is required") || !closed {
		t.Errorf("RoundTrip: %v; closed: %v", err, closed)
	}
}

func TestTransportPassesErrorsOn(t *testing.T) {
	failure := errors.New("connection refused")
	var r recorder
	transport := &Transport{Bucket: &r, Base: roundTripper(func(*http.Request) (*http.Response, error) { return nil, failure })}
	if _, err := transport.RoundTrip(httptest.NewRequest(http.MethodGet, "/", nil)); !errors.Is(err, failure) || len(r.told) > 0 {
		t.Errorf("RoundTrip: %v; told %v", err, r.told)
	}
}
