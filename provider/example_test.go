package provider_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/provider"
	"github.com/drip-go/drip/worker"
)

// The limits of an API that is known.
func ExamplePreset_Limit() {
	xero, err := provider.Named("Xero")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(xero.Name, "limits each", xero.Entity, "to", xero.Rules)
	limit, err := xero.Limit(50 * time.Millisecond)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(limit.RefreshRate, "each", limit.RefreshInterval)
	for _, w := range limit.Windows {
		fmt.Println(w.RefreshRate, "each", w.RefreshInterval)
	}
	fmt.Println("at most", limit.Concurrency, "at a time")
	if _, err := drip.New(provider.Options(limit)); err != nil {
		fmt.Println(err)
	}
	// Output:
	// Xero limits each tenant to [60 in any 1m0s 5000 in any 24h0m0s 5 at a time]
	// 6 each 6.673s
	// 1250 each 8h0m0.017s
	// at most 5 at a time
}

// An accounting API allows 60 calls a minute and 5,000 a day for each tenant, and 5 at a time.
func ExampleOptions() {
	limit, err := provider.Limit(50*time.Millisecond,
		provider.SlidingWindow(60, time.Minute),
		provider.SlidingWindow(5000, 24*time.Hour).Burst(1250),
		provider.Concurrency(5),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	o := provider.Options(limit)
	fmt.Println(o.Size, "at once,", o.RefreshRate, "each", o.RefreshInterval)
	fmt.Println(o.Windows[0].Size, "each", o.Windows[0].RefreshInterval)
	fmt.Println(o.Concurrency, "in flight")
	// Output:
	// 6 at once, 6 each 6.673s
	// 1250 each 8h0m0.017s
	// 5 in flight
}

// All limits of an API that is known, the app's as well.
func ExamplePreset_Options() {
	xero, err := provider.Named("Xero")
	if err != nil {
		fmt.Println(err)
		return
	}
	options, err := xero.Options(50 * time.Millisecond)
	if err != nil {
		fmt.Println(err)
		return
	}
	app := options.Shared["app"]
	fmt.Println("a tenant:", options.RefreshRate, "each", options.RefreshInterval)
	fmt.Println("the app:", app.RefreshRate, "each", app.RefreshInterval)
	// Output:
	// a tenant: 6 each 6.673s
	// the app: 1000 each 6.673s
}

// The presets, and the error of Named for an unknown name.
func ExamplePresets() {
	for _, p := range provider.Presets() {
		fmt.Println(p.Name)
	}
	_, err := provider.Named("Slack, tier 1")
	fmt.Println(err)
	// Output:
	// Shopify GraphQL Admin
	// Shopify GraphQL Admin, Advanced
	// Shopify GraphQL Admin, Plus
	// Shopify GraphQL Admin, Enterprise
	// Shopify REST Admin
	// Shopify REST Admin, Advanced
	// Shopify REST Admin, Plus
	// Stripe, live
	// Stripe, sandbox
	// Stripe, the endpoints of one account
	// GitHub REST
	// GitHub REST, Enterprise Cloud
	// GitHub content
	// HubSpot, Free and Starter
	// HubSpot, Professional
	// HubSpot, Enterprise
	// HubSpot, marketplace app
	// HubSpot, search
	// Slack, tier 2
	// Slack, tier 3
	// Slack, tier 4
	// Salesforce
	// Amazon SP-API getOrders
	// Amazon SP-API getOrder, getOrderItems
	// Amazon SP-API createFeed
	// Amazon SP-API createFeedDocument
	// Amazon SP-API getFeed
	// Amazon SP-API fulfilment outbound
	// Amazon SP-API getCatalogItem
	// Amazon SP-API searchCatalogItems
	// Amazon SP-API getListingsRestrictions
	// Amazon SP-API getDefinitionsProductType
	// Amazon SP-API searchDefinitionsProductTypes
	// Xero
	// Xero, Starter
	// QuickBooks Online
	// QuickBooks Online batch
	// Airtable
	// Notion
	// Shopline
	// Qonto
	// Asaas
	// Anthropic, tier 1
	// provider: there is no preset "Slack, tier 1"; there are "Slack, tier 2", "Slack, tier 3", "Slack, tier 4"
}

// Rules in a configuration file.
func ExampleRule_UnmarshalJSON() {
	var rules []provider.Rule
	err := json.Unmarshal([]byte(`[
		{"kind": "sliding-window", "size": 60, "interval": "1m"},
		{"kind": "concurrency", "size": 5}
	]`), &rules)
	if err != nil {
		fmt.Println(err)
		return
	}
	limit, err := provider.Limit(50*time.Millisecond, rules...)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(rules, "is", limit.RefreshRate, "each", limit.RefreshInterval)
	// Output: [60 in any 1m0s 5 at a time] is 6 each 6.673s
}

// A handler that tells the bucket of a refusal itself.
func ExampleRetryAfter() {
	h := http.Header{"Retry-After": {"Thu, 01 Jan 2026 12:00:30 GMT"}}
	wait, ok := provider.RetryAfter(h, time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC))
	fmt.Println(wait, ok)
	// Output: 30s true
}

// The limits of another: 100 calls in each minute of the clock, and a bucket of 20 that drains by 5 a second.
func ExampleLimit() {
	limit, err := provider.Limit(50*time.Millisecond,
		provider.LeakyBucket(20, 5),
		provider.FixedWindow(100, time.Minute),
		provider.Concurrency(4),
	)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(limit.Size, "at once,", limit.RefreshRate, "each", limit.RefreshInterval)
	fmt.Println(limit.Windows[0].Size, "each", limit.Windows[0].RefreshInterval)

	_, err = provider.Limit(0, provider.SlidingWindow(1, time.Second))
	fmt.Println(err)
	// Output:
	// 18 at once, 1 each 200ms
	// 96 each 1m0s
	// provider: 1 in any 1s: the number is 1; it must be from 2 to 2147483647
}

// Xero tells which of its limits has refused a call. The handler closes the app's limit or the tenant's.
func ExampleStatus_sharedLimit() {
	refusal := func(response *http.Response) error {
		status := provider.Read(response)
		if !status.Throttled {
			return nil
		}
		app := func(q provider.Quota) bool { return q.Name == "app minute" && q.Remaining == 0 }
		if slices.ContainsFunc(status.Quotas, app) {
			return worker.ThrottledShared("app", status.RetryAfter, nil)
		}
		return worker.Throttled(status.RetryAfter, nil)
	}
	for _, left := range []string{"0", "9000"} {
		response := &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{}}
		response.Header.Set("Retry-After", "24")
		response.Header.Set("X-AppMinLimit-Remaining", left)
		fmt.Println(refusal(response))
	}
	// Output:
	// throttled for 24s by the limit "app"
	// throttled for 24s
}

// A response that tells how much is left of its windows.
func ExampleRead() {
	response := &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{}}
	response.Header.Set("RateLimit-Policy", `"burst";q=100;w=60,"daily";q=1000;w=86400`)
	response.Header.Set("RateLimit", `"burst";r=0;t=30,"daily";r=820;t=40000`)

	status := provider.Read(response)
	fmt.Println("throttled:", status.Throttled, "for", status.RetryAfter)
	for _, q := range status.Quotas {
		fmt.Printf("%s: %d of %d in %v left\n", q.Name, q.Remaining, q.Limit, q.Window)
	}
	// Output:
	// throttled: true for 30s
	// burst: 0 of 100 in 1m0s left
	// daily: 820 of 1000 in 24h0m0s left
}

// A provider that tells its limits.
func ExampleStatus_Rules() {
	response := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}}
	response.Header.Set("RateLimit-Policy", `"burst";q=100;w=60,"parallel";q=8;qu="concurrent-requests"`)

	rules := provider.Read(response).Rules()
	fmt.Println(rules)
	limit, err := provider.Limit(50*time.Millisecond, rules...)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(limit.RefreshRate, "each", limit.RefreshInterval, "and", limit.Concurrency, "at a time")
	// Output:
	// [100 in any 1m0s 8 at a time]
	// 10 each 6.673s and 8 at a time
}

// A client whose refused calls close the entity for all who share the bucket.
func ExampleTransport() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "30")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	bucket, err := drip.New(drip.Options{Start: time.Unix(0, 0), Clock: func() time.Time { return now }})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: &provider.Transport{Bucket: bucket}}
	defer client.CloseIdleConnections()

	request, err := http.NewRequestWithContext(provider.WithEntity(context.Background(), "shop-1"), http.MethodGet, server.URL, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	response, err := client.Do(request)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer response.Body.Close()
	fmt.Println(response.Status)

	a, err := bucket.Admit(context.Background(), "shop-1", drip.Request{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("the next call of shop-1 is postponed by", a.Delay)
	// Output:
	// 429 Too Many Requests
	// the next call of shop-1 is postponed by 30s
}

// A refused call lowers the level of its entity, in all processes that share the storage.
func ExampleTransport_follow() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer server.Close()
	limit, err := provider.Limit(50*time.Millisecond, provider.TokenBucket(40, 10))
	if err != nil {
		log.Fatal(err)
	}
	options := provider.Options(limit)
	options.Follow = true
	bucket, err := drip.New(options)
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: &provider.Transport{Bucket: bucket}}
	request, err := http.NewRequestWithContext(provider.WithEntity(context.Background(), "shop"), "GET", server.URL, nil)
	if err != nil {
		log.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		log.Fatal(err)
	}
	response.Body.Close()
	status, err := bucket.Inspect(context.Background(), "shop")
	fmt.Println(status.Level, err)
	// Output: 0.8 <nil>
}

// A consumer of a language model asks with the input and the most output, which it knows before a call. It settles the
// usage in the response. All customers share the limit of the account. The input binds here: 30,000 tokens a minute.
func ExampleAnthropic() {
	type prompt struct {
		customer  string
		input     int // tokens, counted or estimated
		maxTokens int
	}
	model, err := provider.Anthropic(50, 30_000, 8_000).Limit(50 * time.Millisecond) // calls, input and output tokens a minute
	if err != nil {
		fmt.Println(err)
		return
	}
	options := drip.Options{
		Size: 1 << 40, RefreshRate: 1 << 40, // a customer has no limit of its own
		Shared: map[string]drip.Limit{"model": model}, // all customers together
	}
	options.Start = time.UnixMilli(0) // the limit is full
	bucket, err := drip.New(options)
	if err != nil {
		fmt.Println(err)
		return
	}
	w, err := worker.New(worker.Options[prompt]{
		Limiter: bucket,
		Entity:  func(p prompt) (string, error) { return p.customer, nil },
		Request: func(p prompt) drip.Request {
			return drip.Request{Costs: drip.Costs{provider.InputTokens: p.input, provider.OutputTokens: p.maxTokens}}
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, customer := range []string{"acme", "bolt", "acme", "crag"} {
		out := w.Do(context.Background(), prompt{customer, 9_000, 2_000}, "", func(ctx context.Context) error {
			// Call the model here. Its response has the usage.
			worker.OperationOf(ctx).SetCosts(drip.Costs{provider.InputTokens: 9_120, provider.OutputTokens: 350})
			return nil
		})
		fmt.Println(out.Kind)
	}
	// Output:
	// done
	// done
	// done
	// postponed
}
