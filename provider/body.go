package provider

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
)

// content is the statement of a body about the limit.
type content struct {
	throttled bool // with a status of 200
	forbidden bool // with a status of 403
	wait      time.Duration
	quota     *Quota
}

// contentOf reads the bodies of GraphQL (Shopify, GitHub) and the errors of GitHub and Salesforce. Anything else says
// nothing.
func contentOf(body []byte) (c content) {
	body = bytes.TrimSpace(body)
	if len(body) == 0 {
		return c
	}
	if body[0] == '[' { // [{"message":"TotalRequests Limit exceeded.","errorCode":"REQUEST_LIMIT_EXCEEDED"}]
		var errors []struct{ ErrorCode string }
		_ = json.Unmarshal(body, &errors)
		for _, e := range errors {
			c.forbidden = c.forbidden || e.ErrorCode == "REQUEST_LIMIT_EXCEEDED"
		}
		return c
	}
	var b struct {
		Message string
		Errors  []struct {
			Type, Message string
			Extensions    struct{ Code string }
		}
		Extensions struct {
			Cost struct {
				RequestedQueryCost float64
				ThrottleStatus     struct{ MaximumAvailable, CurrentlyAvailable, RestoreRate float64 }
			}
		}
	}
	if !json.Valid(body) {
		return c
	}
	_ = json.Unmarshal(body, &b) // a value of another type stays empty
	c.forbidden = strings.Contains(strings.ToLower(b.Message), "rate limit")
	for _, e := range b.Errors {
		c.throttled = c.throttled || e.Extensions.Code == "THROTTLED" || e.Type == "RATE_LIMITED" || e.Type == "RATE_LIMIT" ||
			strings.Contains(strings.ToLower(e.Message), "secondary rate limit") // GitHub documents no type of it
	}
	if t := b.Extensions.Cost.ThrottleStatus; t.RestoreRate > 0 && t.MaximumAvailable > 0 {
		units := func(n float64) int64 { return int64(min(max(0, n), mostNumber)) }
		c.quota = &Quota{
			Unit: "points", Limit: units(t.MaximumAvailable), Remaining: units(t.CurrentlyAvailable),
			PerSecond: min(t.RestoreRate, mostNumber),
		}
		if missing := b.Extensions.Cost.RequestedQueryCost - t.CurrentlyAvailable; missing > 0 {
			c.wait = min(longestDay, seconds(missing/t.RestoreRate))
		}
	}
	return c
}
