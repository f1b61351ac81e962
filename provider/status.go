package provider

import (
	"net/http"
	"slices"
	"strings"
	"time"
)

// Status is the statement of a response about the limit.
type Status struct {
	// Throttled reports whether the provider has refused the call because of its limit.
	Throttled bool

	// RetryAfter is how long the caller of a refused call should wait, at most a day; 0 if the response does not say.
	RetryAfter time.Duration

	// Quotas are the limits that the response tells, at most 16. Accepted calls have them, too.
	Quotas []Quota
}

// Quota is the statement of a response about one limit. Trust it as much as the sender of the response.
type Quota struct {
	// Name is the name of the policy, or the provider's name for the limit: "daily", "core". Often empty.
	Name string

	// Unit is the unit that the limit counts: "requests" unless the response says something else, such as "points",
	// "content-bytes" or "concurrent-requests".
	Unit string

	// Limit is how much the policy allows, and Remaining how much of it is left. Unknown if the response does not say.
	Limit, Remaining int64

	// Window is the time that the limit is for, and Reset the time until there is more. 0 if the response does not say.
	Window, Reset time.Duration

	// PerSecond is how much a bucket gets back each second; 0 if the response does not say.
	PerSecond float64

	// Key is the partition key: the part of the provider's capacity that the limit is for. Often empty.
	Key string
}

// Unknown is the value of a Limit or Remaining that the response does not tell.
const Unknown = -1

const (
	mostQuotas = 16
	longestDay = 24 * time.Hour
)

// Read reads the status and the header of a response. It does not read the body; Parse also reads the bodies of some
// providers.
func Read(r *http.Response) Status { return Parse(r.StatusCode, r.Header, nil, time.Now()) }

// Parse reads a response that came at the time now. body is the known part of its body, which may be nil.
//
// Parse reports a refused call in four cases:
//   - The status is 429.
//   - The status is 503 or 529, and there is a Retry-After. The status is 403, and there is one above 0: Confluence sends
//     0 with calls that it does not refuse.
//   - The status is 403, and nothing is left of a quota, as with GitHub and Salesforce.
//   - The body says so: 200 with a GraphQL error THROTTLED (Shopify), RATE_LIMITED, RATE_LIMIT or about a secondary rate
//     limit (GitHub), 403 with REQUEST_LIMIT_EXCEEDED (Salesforce) or a message about the rate limit (GitHub).
//
// The time to wait is the Retry-After. Without one it lasts until Shopify's bucket has the missing points, or until all
// quotas that are used up are reset. If none tells that it is used up, quotas without a Remaining count as used up.
// Times of day count from the response's own Date, so clocks need not agree. Parse ignores malformed fields, and the
// header's quotas if the response has an Age, as from a cache. It bounds all numbers.
//
// Sources, read in November 2026: RFC 9110 section 10.2.3; draft-ietf-httpapi-ratelimit-headers 03 to 11;
// https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api;
// https://docs.github.com/en/graphql/overview/rate-limits-and-query-limits-for-the-graphql-api;
// https://developer.xero.com/faq/limits;
// https://developers.hubspot.com/docs/developer-tooling/platform/usage-guidelines;
// https://developer.salesforce.com/docs/atlas.en-us.api_rest.meta/api_rest/headers_api_usage.htm;
// https://developer-docs.amazon.com/sp-api/docs/usage-plans-and-rate-limits;
// https://shopify.dev/docs/api/usage/limits; https://developers.notion.com/reference/request-limits;
// https://developer.atlassian.com/cloud/jira/platform/rate-limiting.
func Parse(code int, h http.Header, body []byte, now time.Time) Status {
	now = dateOf(h, now)
	var s Status
	if age, ok := number(h.Get("Age")); !ok || age == 0 { // the quotas of a cached response are out of date
		s.Quotas = quotasOf(h, now)
	}
	content := contentOf(body)
	if content.quota != nil {
		s.Quotas = append(s.Quotas, *content.quota)
	}
	s.Quotas = s.Quotas[:min(len(s.Quotas), mostQuotas)]

	retryAfter, said := RetryAfter(h, now)
	switch code {
	case http.StatusTooManyRequests:
		s.Throttled = true
	case http.StatusServiceUnavailable, 529: // the site is overloaded: Notion and others
		s.Throttled = said
	case http.StatusForbidden:
		s.Throttled = retryAfter > 0 || content.forbidden || slices.ContainsFunc(s.Quotas, func(q Quota) bool { return q.Remaining == 0 })
	case http.StatusOK:
		s.Throttled = content.throttled
	}
	switch {
	case !s.Throttled:
	case said:
		s.RetryAfter = retryAfter
	case content.wait > 0:
		s.RetryAfter = content.wait
	default:
		s.RetryAfter = min(longestDay, reset(s.Quotas))
	}
	return s
}

// reset is the time until all quotas that are used up are reset. If there is none, it looks at the quotas whose
// Remaining is Unknown.
func reset(quotas []Quota) (d time.Duration) {
	for _, remaining := range []int64{0, Unknown} {
		for _, q := range quotas {
			if q.Remaining == remaining {
				d = max(d, q.Reset)
			}
		}
		if d > 0 {
			return d
		}
	}
	return 0
}

// Rules returns the limits that the response states in full, for Limit. A limit with a window is a SlidingWindow,
// because the response does not tell its beginning. A limit with a rate is a LeakyBucket, and may count points: then
// use them as Request.Cost. A limit of concurrent requests is a Concurrency. Rules leaves out windows and buckets of
// one call. Check the rules of a provider you do not trust before you use them.
func (s Status) Rules() []Rule {
	var rules []Rule
	for _, q := range s.Quotas {
		var r Rule
		n := int(min(q.Limit, mostUnits))
		switch {
		case q.Unit == "concurrent-requests":
			r = Concurrency(n)
		case q.PerSecond > 0:
			r = LeakyBucket(n, q.PerSecond)
		case q.Unit == "requests":
			r = SlidingWindow(n, q.Window)
		}
		if r.check() == nil && !slices.Contains(rules, r) {
			rules = append(rules, r)
		}
	}
	return rules
}

// quotasOf reads all header fields that tell of quotas, the standard ones first.
func quotasOf(h http.Header, now time.Time) []Quota {
	quotas := standard(h)
	for _, prefix := range []string{"RateLimit-", "X-RateLimit-", "X-Rate-Limit-", "Rate-Limit-"} {
		quotas = threeFields(quotas, h, prefix, now)
	}
	for _, f := range []struct {
		name, limit, remaining, milliseconds string
		window                               time.Duration
	}{
		{"minute", "", "X-MinLimit-Remaining", "", time.Minute},
		{"day", "", "X-DayLimit-Remaining", "", 24 * time.Hour},
		{"app minute", "", "X-AppMinLimit-Remaining", "", time.Minute},
		{"interval", "X-HubSpot-RateLimit-Max", "X-HubSpot-RateLimit-Remaining", "X-HubSpot-RateLimit-Interval-Milliseconds", 0},
		{"daily", "X-HubSpot-RateLimit-Daily", "X-HubSpot-RateLimit-Daily-Remaining", "", 24 * time.Hour},
	} {
		q := Quota{Name: f.name, Unit: "requests", Limit: count(h.Get(f.limit)), Remaining: count(h.Get(f.remaining)), Window: f.window}
		if ms, ok := number(h.Get(f.milliseconds)); ok {
			q.Window = seconds(ms / 1000)
		}
		if q.Limit != Unknown || q.Remaining != Unknown {
			quotas = append(quotas, q)
		}
	}
	if q, ok := used(h.Get("X-Shopify-Shop-Api-Call-Limit")); ok { // 32/40
		quotas = append(quotas, q)
	}
	for info := range strings.SplitSeq(h.Get("Sforce-Limit-Info"), ";") { // api-usage=18/5000; per-app-api-usage=17/250(appName=a)
		name, value, _ := strings.Cut(strings.TrimSpace(info), "=")
		value, _, _ = strings.Cut(value, "(")
		if q, ok := used(value); ok && strings.HasSuffix(name, "api-usage") {
			q.Name, q.Window = name, 24*time.Hour
			quotas = append(quotas, q)
		}
		if len(quotas) > mostQuotas {
			break
		}
	}
	if rate, ok := number(h.Get("X-Amzn-RateLimit-Limit")); ok && rate > 0 { // calls a second: 0.0167
		quotas = append(quotas, Quota{Unit: "requests", Limit: Unknown, Remaining: Unknown, PerSecond: rate, Reset: seconds(1 / rate)})
	}
	return quotas
}

// used reads a used part and its limit: 32/40.
func used(s string) (Quota, bool) {
	n, of, _ := strings.Cut(s, "/")
	spent, limit := count(n), count(of)
	if spent == Unknown || limit == Unknown {
		return Quota{}, false
	}
	return Quota{Unit: "requests", Limit: limit, Remaining: max(0, limit-spent)}, true
}
