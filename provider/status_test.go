package provider

import (
	"bufio"
	"fmt"
	"math"
	"net/http"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip"
)

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// header reads lines as they stand in a response.
func header(lines string) http.Header {
	h, _ := textproto.NewReader(bufio.NewReader(strings.NewReader(strings.TrimSpace(lines) + "\r\n\r\n"))).ReadMIMEHeader()
	return http.Header(h)
}

func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		lines string
		want  time.Duration
		ok    bool
	}{
		{"", 0, false},
		{"Retry-After:", 0, false},
		{"Retry-After: 120", 2 * time.Minute, true},
		{"Retry-After: 0", 0, true},
		{"Retry-After: 2.0", 2 * time.Second, true}, // Shopify
		{"Retry-After: 0.0001", time.Millisecond, true},
		{"Retry-After: 66975", 66975 * time.Second, true}, // Xero's day
		{"Retry-After: 1000000", longestDay, true},
		{"Retry-After: 99999999999999999999999", longestDay, true},
		{"Retry-After: " + strings.Repeat("9", 500), longestDay, true},
		{"Retry-After: -5", 0, false},
		{"Retry-After: +5", 0, false},
		{"Retry-After: 1e3", 0, false},
		{"Retry-After: 1.2.3", 0, false},
		{"Retry-After: 0x10", 0, false},
		{"Retry-After: NaN", 0, false},
		{"Retry-After: Inf", 0, false},
		{"Retry-After: soon", 0, false},
		{"Retry-After: Sat, 21 Nov 2026 12:00:30 GMT", 30 * time.Second, true},
		{"Retry-After: Saturday, 21-Nov-26 12:00:30 GMT", 30 * time.Second, true},
		{"Retry-After: Sat Nov 21 12:00:30 2026", 30 * time.Second, true},
		{"Retry-After: Sat, 21 Nov 2026 11:59:59 GMT", 0, true},
		{"Retry-After: Sat, 21 Nov 2076 12:00:00 GMT", longestDay, true},
		{"Retry-After: Sat, 21 Nov 2026 12:00:30", 0, false},
		{"Retry-After: 10\nRetry-After: 20", 20 * time.Second, true}, // of the provider and of a proxy
		{"Retry-After: 20\nRetry-After: 10", 20 * time.Second, true},
		{"Retry-After:\nRetry-After: 20", 20 * time.Second, true},
		{"Retry-After: 0\nRetry-After: soon", 0, true},
		{"Date: Sat, 21 Nov 2026 11:58:00 GMT\nRetry-After: Sat, 21 Nov 2026 11:58:10 GMT", 10 * time.Second, true}, // our clock is fast
	} {
		got, ok := RetryAfter(header(c.lines), noon)
		if got != c.want || ok != c.ok {
			t.Errorf("%q: RetryAfter = %v, %v, want %v, %v", c.lines, got, ok, c.want, c.ok)
		}
	}
}

// requests is a quota of requests of which only so much is known.
func requests(name string, limit, remaining int64, window, reset time.Duration) Quota {
	return Quota{Name: name, Unit: "requests", Limit: limit, Remaining: remaining, Window: window, Reset: reset}
}

func TestParse(t *testing.T) {
	const s, m, h = time.Second, time.Minute, time.Hour
	throttled := func(d time.Duration, q ...Quota) Status { return Status{true, d, q} }
	fine := func(q ...Quota) Status { return Status{Quotas: q} }
	for name, c := range map[string]struct {
		code  int
		lines string
		body  string
		want  Status
	}{
		"nothing":                      {200, "", "", fine()},
		"429 that says nothing":        {429, "", "", throttled(0)},
		"429 with Retry-After":         {429, "Retry-After: 7", "", throttled(7 * s)},
		"429 with a malformed one":     {429, "Retry-After: later", "", throttled(0)},
		"503 with Retry-After":         {503, "Retry-After: 7", "", throttled(7 * s)},
		"503 without":                  {503, "", "", fine()},
		"529 of Notion":                {529, "Retry-After: 7", "", throttled(7 * s)},
		"a move with Retry-After":      {301, "Retry-After: 7", "", fine()},
		"403 for want of a permission": {403, "X-RateLimit-Limit: 5000\nX-RateLimit-Remaining: 4999", `{"message":"Must have admin rights"}`, fine(requests("", 5000, 4999, 0, 0))},
		"500":                          {500, "Retry-After: 7", "", fine()},

		// draft-ietf-httpapi-ratelimit-headers-11
		"draft: a limit": {200, `RateLimit: "default";r=50;t=30`, "", fine(requests("default", Unknown, 50, 0, 30*s))},
		"draft: policies": {
			200, `RateLimit-Policy: "burst";q=100;w=60,"daily";q=1000;w=86400`, "",
			fine(requests("burst", 100, Unknown, m, 0), requests("daily", 1000, Unknown, 24*h, 0)),
		},
		"draft: both, in two lines": {
			200, "RateLimit-Policy: \"permin\";q=50;w=60\nRateLimit-Policy: \"perhr\";q=1000;w=3600\nRateLimit: \"permin\" ; r=5", "",
			fine(requests("permin", 50, Unknown, m, 0), requests("perhr", 1000, Unknown, h, 0)),
		},
		"draft: both": {
			200, "RateLimit-Policy: \"permin\";q=50;w=60, \"perhr\";q=1000;w=3600\nRateLimit: \"permin\"; r=5;t=9", "",
			fine(requests("permin", 50, 5, m, 9*s), requests("perhr", 1000, Unknown, h, 0)),
		},
		"draft: unit and key": {
			200, "RateLimit-Policy: \"peruser\";q=65535;qu=\"content-bytes\";w=10;pk=:sdfjLJUOUH==:\nRateLimit: \"peruser\";r=300;t=6;pk=:sdfjLJUOUH==:", "",
			fine(Quota{Name: "peruser", Unit: "content-bytes", Limit: 65535, Remaining: 300, Window: 10 * s, Reset: 6 * s, Key: "\xb1\xd7\xe3\x2c\x95\x0e\x50"}),
		},
		"draft: other parameters": {
			200, `RateLimit: "a b\"c";r=1;acme-x=1.5;y;z=tok;d=@1659578233;f=?0;s=%"f%c3%bc"`, "", fine(requests(`a b"c`, Unknown, 1, 0, 0)),
		},
		"draft: used up": {429, `RateLimit: "a";r=0;t=30, "b";r=7;t=3600`, "", throttled(30*s, requests("a", Unknown, 0, 0, 30*s), requests("b", Unknown, 7, 0, h))},
		"draft: Retry-After wins": {
			429, "RateLimit: \"a\";r=0;t=30\nRetry-After: 5", "", throttled(5*s, requests("a", Unknown, 0, 0, 30*s)),
		},
		"draft: something is left of what is shown": {429, `RateLimit: "a";r=7;t=3600`, "", throttled(0, requests("a", Unknown, 7, 0, h))},
		"draft: from a cache":                       {200, "Age: 20\nRateLimit: \"default\";r=50;t=30", "", fine()},
		"draft: fresh from a cache":                 {200, "Age: 0\nRateLimit: \"default\";r=50;t=30", "", fine(requests("default", Unknown, 50, 0, 30*s))},
		"draft: a window of a century": {
			200, `RateLimit-Policy: "a";q=999999999999999;w=999999999999999`, "", fine(requests("a", 999999999999999, Unknown, longest, 0)),
		},

		// older drafts
		"draft 07": {
			200, "RateLimit: limit=100, remaining=50, reset=30\nRateLimit-Policy: 100;w=60", "", fine(requests("", 100, 50, m, 30*s)),
		},
		"three fields": {
			200, "RateLimit-Limit: 100\nRateLimit-Remaining: 50\nRateLimit-Reset: 30", "", fine(requests("", 100, 50, 0, 30*s)),
		},
		"three fields, policies behind the limit": {
			200, "RateLimit-Limit: 100, 100;w=60, 5000;w=3600;comment=\"fixed\"\nRateLimit-Remaining: 50\nRateLimit-Reset: 30", "",
			fine(requests("", 100, 50, m, 30*s), requests("", 5000, Unknown, h, 0)),
		},
		"three fields, used up": {
			429, "RateLimit-Limit: 100\nRateLimit-Remaining: 0\nRateLimit-Reset: 30", "", throttled(30*s, requests("", 100, 0, 0, 30*s)),
		},

		// X-RateLimit
		"GitHub": {
			200, "x-ratelimit-limit: 5000\nx-ratelimit-remaining: 4987\nx-ratelimit-reset: 1795264200\nx-ratelimit-used: 13\nx-ratelimit-resource: core", "",
			fine(requests("core", 5000, 4987, 0, 30*m)),
		},
		"GitHub, used up": {
			403, "Date: Sat, 21 Nov 2026 12:29:50 GMT\nx-ratelimit-limit: 60\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 1795264200\nx-ratelimit-resource: core", "",
			throttled(10*s, requests("core", 60, 0, 0, 10*s)),
		},
		"Confluence, forbidden": { // its accepted calls say 0, too
			403, "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 9\nX-RateLimit-FillRate: 5\nX-RateLimit-Interval-Seconds: 1\nRetry-After: 0", "",
			fine(requests("", 10, 9, 0, 0)),
		},
		"Jira, ISO 8601 without seconds": {
			429, "Date: Sat, 21 Nov 2026 12:29:50 GMT\nX-RateLimit-Limit: 100\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 2026-11-21T12:31Z", "",
			throttled(70*s, requests("", 100, 0, 0, 70*s)),
		},
		"ISO 8601": {
			429, "Date: Sat, 21 Nov 2026 12:29:50 GMT\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 2026-11-21T13:30:00.5+01:00", "",
			throttled(10500*time.Millisecond, requests("", Unknown, 0, 0, 10500*time.Millisecond)),
		},
		"below zero": {
			403, "X-RateLimit-Limit: 60\nX-RateLimit-Remaining: -5\nX-RateLimit-Reset: 300", "", throttled(5*m, requests("", 60, 0, 0, 5*m)),
		},
		"below zero, of two windows": {
			429, "X-RateLimit-Limit: 1, 60\nX-RateLimit-Remaining: -1, 7\nX-RateLimit-Reset: 2, 300", "",
			throttled(2*s, requests("", 1, 0, 0, 2*s), requests("", 60, 7, 0, 5*m)),
		},
		"-1 for no limit": {403, "X-RateLimit-Limit: -1\nX-RateLimit-Remaining: -1", "", fine()},
		"GitHub, a reset that is past": {
			429, "x-ratelimit-remaining: 0\nx-ratelimit-reset: 1795260000", "", throttled(0, requests("", Unknown, 0, 0, 0)),
		},
		"GitHub, secondary": {403, "Retry-After: 60\nx-ratelimit-limit: 30\nx-ratelimit-remaining: 14\nx-ratelimit-resource: search", "", throttled(m, requests("search", 30, 14, 0, 0))},
		"GitHub, secondary, in the body": {
			403, "x-ratelimit-remaining: 14", `{"message":"You have exceeded a secondary rate limit. Please wait a few minutes.","documentation_url":"x"}`,
			throttled(0, requests("", Unknown, 14, 0, 0)),
		},
		"GitHub, GraphQL": {
			200, "x-ratelimit-remaining: 0\nx-ratelimit-reset: 1795262460", `{"errors":[{"type":"RATE_LIMITED","message":"API rate limit exceeded"}]}`,
			throttled(m, requests("", Unknown, 0, 0, m)),
		},
		"GitHub, GraphQL, another type": {
			200, "x-ratelimit-remaining: 14", `{"errors":[{"type":"RATE_LIMIT","code":"graphql_rate_limit","message":"API rate limit already exceeded for user ID 1."}]}`,
			throttled(0, requests("", Unknown, 14, 0, 0)),
		},
		"GitHub, GraphQL, secondary": {
			200, "Retry-After: 60\nx-ratelimit-remaining: 4990", `{"data":null,"errors":[{"message":"You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}]}`,
			throttled(m, requests("", Unknown, 4990, 0, 0)),
		},
		"seconds": {429, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 58.37", "", throttled(58370*time.Millisecond, requests("", Unknown, 0, 0, 58370*time.Millisecond))},
		"milliseconds since 1970": {
			429, "X-Rate-Limit-Remaining: 0\nX-Rate-Limit-Reset: 1795262412500", "", throttled(12500*time.Millisecond, requests("", Unknown, 0, 0, 12500*time.Millisecond)),
		},
		"a date": {
			429, "X-Rate-Limit-Remaining: 0\nX-Rate-Limit-Reset: Sat, 21 Nov 2026 12:01:00 GMT", "", throttled(m, requests("", Unknown, 0, 0, m)),
		},
		"only a reset":  {429, "X-RateLimit-Reset: 9", "", throttled(9*s, requests("", Unknown, Unknown, 0, 9*s))},
		"another month": {429, "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 2000000", "", throttled(24*h, requests("", Unknown, 0, 0, 2000000*s))},
		"several windows": { // Brave
			200, "X-RateLimit-Limit: 1, 15000\nX-RateLimit-Policy: 1;w=1, 15000;w=2592000\nX-RateLimit-Remaining: 0, 1000\nX-RateLimit-Reset: 1, 1419704", "",
			fine(requests("", 1, 0, s, s), requests("", 15000, 1000, 2592000*s, 1419704*s)),
		},

		// others
		"Shopify REST": {200, "X-Shopify-Shop-Api-Call-Limit: 32/40", "", fine(requests("", 40, 8, 0, 0))},
		"Shopify REST, refused": {
			429, "Retry-After: 2.0\nX-Shopify-Shop-Api-Call-Limit: 40/40", "", throttled(2*s, requests("", 40, 0, 0, 0)),
		},
		"Shopify GraphQL": {
			200, "", `{"data":{"shop":{}},"extensions":{"cost":{"requestedQueryCost":101,"actualQueryCost":46,"throttleStatus":{"maximumAvailable":2000.0,"currentlyAvailable":1954,"restoreRate":100.0}}}}`,
			fine(Quota{Unit: "points", Limit: 2000, Remaining: 1954, PerSecond: 100}),
		},
		"Shopify GraphQL, refused": {
			200, "", `{"errors":[{"message":"Throttled","extensions":{"code":"THROTTLED","documentation":"https://shopify.dev/api/usage/rate-limits"}}],
			"extensions":{"cost":{"requestedQueryCost":752,"actualQueryCost":null,"throttleStatus":{"maximumAvailable":1000.0,"currentlyAvailable":666,"restoreRate":50.0}}}}`,
			throttled(1720*time.Millisecond, Quota{Unit: "points", Limit: 1000, Remaining: 666, PerSecond: 50}),
		},
		"GraphQL, another error": {200, "", `{"errors":[{"extensions":{"code":"ACCESS_DENIED"}}]}`, fine()},
		"errors of another kind": {403, "", `{"errors":["rate limit"],"message":7}`, fine()},
		"Xero": {
			200, "X-DayLimit-Remaining: 4998\nX-MinLimit-Remaining: 59\nX-AppMinLimit-Remaining: 9999", "",
			fine(requests("minute", Unknown, 59, m, 0), requests("day", Unknown, 4998, 24*h, 0), requests("app minute", Unknown, 9999, m, 0)),
		},
		"Xero, refused": {
			429, "Retry-After: 24\nX-Rate-Limit-Problem: minute\nX-MinLimit-Remaining: 0", "", throttled(24*s, requests("minute", Unknown, 0, m, 0)),
		},
		"HubSpot": {
			200, "X-HubSpot-RateLimit-Daily: 250000\nX-HubSpot-RateLimit-Daily-Remaining: 249622\nX-HubSpot-RateLimit-Interval-Milliseconds: 10000\nX-HubSpot-RateLimit-Max: 100\nX-HubSpot-RateLimit-Remaining: 95", "",
			fine(requests("interval", 100, 95, 10*s, 0), requests("daily", 250000, 249622, 24*h, 0)),
		},
		"HubSpot, a limit that is no longer enforced": {
			403, "X-HubSpot-RateLimit-Max: 190\nX-HubSpot-RateLimit-Remaining: 180\nX-HubSpot-RateLimit-Secondly: 10\nX-HubSpot-RateLimit-Secondly-Remaining: 0",
			`{"status":"error","category":"MISSING_SCOPES"}`, fine(requests("interval", 190, 180, 0, 0)),
		},
		"HubSpot, refused": {
			429, "X-HubSpot-RateLimit-Max: 100\nX-HubSpot-RateLimit-Remaining: 0", `{"status":"error","policyName":"TEN_SECONDLY_ROLLING"}`,
			throttled(0, requests("interval", 100, 0, 0, 0)),
		},
		"Salesforce": {
			200, "Sforce-Limit-Info: api-usage=25/5000; per-app-api-usage=17/250(appName=sample-connected-app)", "",
			fine(requests("api-usage", 5000, 4975, 24*h, 0), requests("per-app-api-usage", 250, 233, 24*h, 0)),
		},
		"Salesforce, above the limit": {
			403, "Sforce-Limit-Info: api-usage=110018/100000; api-bursts=1/750", "", throttled(0, requests("api-usage", 100000, 0, 24*h, 0)),
		},
		"Salesforce, refused":         {403, "", `[{"message":"TotalRequests Limit exceeded.","errorCode":"REQUEST_LIMIT_EXCEEDED"}]`, throttled(0)},
		"Salesforce, another refusal": {403, "", `[{"message":"no","errorCode":"INSUFFICIENT_ACCESS"}]`, fine()},
		"Amazon": {
			200, "x-amzn-RateLimit-Limit: 0.5", "",
			fine(Quota{Unit: "requests", Limit: Unknown, Remaining: Unknown, PerSecond: 0.5, Reset: 2 * s}),
		},
		"Amazon, refused": {
			429, "x-amzn-RateLimit-Limit: 0.0167", `{"errors":[{"code":"QuotaExceeded"}]}`,
			throttled(59881*time.Millisecond, Quota{Unit: "requests", Limit: Unknown, Remaining: Unknown, PerSecond: 0.0167, Reset: 59881 * time.Millisecond}),
		},
		"Slack":    {429, "Retry-After: 30", `{"ok":false,"error":"ratelimited"}`, throttled(30 * s)},
		"not JSON": {403, "", `{"message":"rate limit`, fine()},
	} {
		t.Run(name, func(t *testing.T) {
			got := Parse(c.code, header(c.lines), []byte(c.body), noon)
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", c.want) {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
		})
	}
}

func TestMalformedFieldsAreIgnored(t *testing.T) {
	for _, value := range []string{
		`default;r=50;t=30`, `"default"`, `"default";t=30`, `"default";r=-1`, `"default";r=1.5`, `"default";r="5"`, `"default";r`,
		`"default";r=50;t=-30`, `"default";r=50;t=1.5`, `"default";r=50;pk="x"`, `"default";r=50;pk=:x`, `"default";r=50;pk=:!:`,
		`"default";r=50,`, `,"default";r=50`, `"default";r=50 "x";r=1`, `"default;r=50`, `"def\ault";r=50`, "\"d\u00e9f\";r=50",
		`"default";r=1000000000000000`, `"default";R=50`, `"default";r=50;=1`, `("default");r=50`, `5;r=50`, `"a";r=5, b`,
		`"a";r=5;x=`, `"a";r=5;x=?2`, `"a";r=5;x=@1.5`, `"a";r=5;x=1.`, `"a";r=5;x=1.2345`, `"a";r=5;x=--1`, `"a";r=5;x=%a`,
		`limit=5, remaining=x`, `limit=5`, strings.Repeat(`"a";r=5,`, 20) + `"a";r=5`,
	} {
		h := http.Header{}
		h.Set("RateLimit", value)
		if got := Parse(200, h, nil, noon); len(got.Quotas) > 0 {
			t.Errorf("RateLimit: %s: %+v", value, got)
		}
	}
	for _, value := range []string{
		`"a";w=60`, `"a";q=5;w=0`, `"a";q=5;w=-1`, `"a";q=5;w=1.5`, `"a";q=5;w="60"`, `"a";q=5;qu=requests`, `"a";q=x`, `a;q=5`, `"a";q=5,5;w=60`, `-5;w=60`,
	} {
		h := http.Header{}
		h.Set("RateLimit-Policy", value)
		if got := Parse(200, h, nil, noon); len(got.Quotas) > 0 {
			t.Errorf("RateLimit-Policy: %s: %+v", value, got)
		}
	}
}

func TestRules(t *testing.T) {
	for _, c := range []struct{ lines, body, want string }{
		{`RateLimit-Policy: "burst";q=100;w=60,"daily";q=1000;w=86400,"once";q=5;qu="concurrent-requests"`, "", "[100 in any 1m0s 1000 in any 24h0m0s 5 at a time]"},
		{`RateLimit-Policy: "bytes";q=100;w=60;qu="content-bytes","one";q=1;w=60,"none";q=0;qu="concurrent-requests"`, "", "[]"},
		{"X-HubSpot-RateLimit-Max: 190\nX-HubSpot-RateLimit-Remaining: 3\nX-HubSpot-RateLimit-Interval-Milliseconds: 10000", "", "[190 in any 10s]"},
		{"x-amzn-RateLimit-Limit: 2", "", "[]"}, // how much at once it does not say
		{"X-RateLimit-Limit: 5000\nX-RateLimit-Remaining: 1", "", "[]"},
		{"", `{"extensions":{"cost":{"throttleStatus":{"maximumAvailable":2000,"currentlyAvailable":5,"restoreRate":100}}}}`, "[a bucket of 2000 that drains by 100 a second]"},
	} {
		if got := fmt.Sprint(Parse(200, header(c.lines), []byte(c.body), noon).Rules()); got != c.want {
			t.Errorf("%s%s: %s, want %s", c.lines, c.body, got, c.want)
		}
	}
}

// With any response, no number is out of bounds, and its rules give a limit that drip takes.
func FuzzParse(f *testing.F) {
	f.Add(429, "Retry-After: 7\nRateLimit: \"a\";r=0;t=30\nRateLimit-Policy: \"a\";q=100;w=60;qu=\"requests\";pk=:YQ==:", "")
	f.Add(200, "RateLimit: limit=100, remaining=50, reset=30\nRateLimit-Limit: 100, 100;w=60\nRateLimit-Remaining: 1\nRateLimit-Reset: 3", "")
	f.Add(403, "Date: Sat, 21 Nov 2026 12:00:00 GMT\nX-RateLimit-Remaining: 0, 5\nX-RateLimit-Reset: 1795264200, 12.5", `{"message":"rate limit"}`)
	f.Add(200, "x-amzn-RateLimit-Limit: 0.0000000000000000001\nSforce-Limit-Info: api-usage=1/2; b=3/4(c)", `[{"errorCode":"REQUEST_LIMIT_EXCEEDED"}]`)
	f.Add(200, "X-Shopify-Shop-Api-Call-Limit: 32/40\nX-HubSpot-RateLimit-Max: 1\nX-HubSpot-RateLimit-Interval-Milliseconds: 99999999999999999999",
		`{"errors":[{"extensions":{"code":"THROTTLED"}}],"extensions":{"cost":{"requestedQueryCost":1e308,"throttleStatus":{"maximumAvailable":1e300,"currentlyAvailable":-1e300,"restoreRate":1e-300}}}}`)
	f.Fuzz(func(t *testing.T, code int, lines, body string) {
		h := http.Header{}
		for line := range strings.SplitSeq(lines, "\n") {
			name, value, _ := strings.Cut(line, ":")
			h.Add(name, strings.TrimSpace(value))
		}
		s := Parse(code, h, []byte(body), noon)
		if s.RetryAfter < 0 || s.RetryAfter > longestDay || s.RetryAfter > 0 && !s.Throttled || len(s.Quotas) > mostQuotas {
			t.Errorf("%+v", s)
		}
		for _, q := range s.Quotas {
			if q.Limit < Unknown || q.Limit > mostNumber || q.Remaining < Unknown || q.Remaining > mostNumber || q.Window < 0 || q.Window > longest ||
				q.Reset < 0 || q.Reset > longest || math.IsNaN(q.PerSecond) || q.PerSecond < 0 || q.PerSecond > mostNumber || q.Unit == "" && !strings.Contains(lines, "qu=") {
				t.Errorf("%+v", q)
			}
		}
		for _, r := range s.Rules() {
			l, err := Limit(travel, r)
			if err != nil {
				t.Fatalf("%v: %v", r, err)
			}
			if _, err := drip.New(Options(l)); err != nil {
				t.Fatalf("%v: %v", r, err)
			}
		}
	})
}
