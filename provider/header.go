package provider

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// RetryAfter reads the field Retry-After of a response that came at the time now. The field has seconds, with fractions
// as Shopify has them, or a date. A date counts from the response's own Date if it has one, else from now. wait is 0
// for a date in the past, and at most a day. Of several fields it is the longest. ok is false if there is none, or all
// are malformed.
//
// Source: RFC 9110, section 10.2.3, of June 2022.
func RetryAfter(h http.Header, now time.Time) (wait time.Duration, ok bool) {
	for _, field := range h.Values("Retry-After") {
		if n, isNumber := number(field); isNumber {
			wait, ok = max(wait, seconds(n)), true
		} else if t, err := http.ParseTime(field); err == nil {
			wait, ok = max(wait, until(t, dateOf(h, now))), true
		}
	}
	return min(longestDay, wait), ok
}

// dateOf is when the response says that it was made; now if it does not.
func dateOf(h http.Header, now time.Time) time.Time {
	if t, err := http.ParseTime(h.Get("Date")); err == nil {
		return t
	}
	return now
}

func until(t, now time.Time) time.Duration { return min(longest, max(0, t.Sub(now))) }

// mostNumber is the largest integer of a structured field.
const mostNumber = 999_999_999_999_999

// number reads digits with or without a fraction, up to mostNumber.
func number(s string) (float64, bool) {
	s = strings.TrimSpace(s)
	if s == "" || !digit(s[0]) || strings.Trim(s, "0123456789.") != "" {
		return 0, false
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil && !math.IsInf(n, 1) {
		return 0, false // 1.2.3
	}
	return min(n, mostNumber), true
}

// count reads a number as a whole one, Unknown if it is none.
func count(s string) int64 {
	n, ok := number(s)
	if !ok {
		return Unknown
	}
	return int64(n)
}

// seconds as a Duration, rounded up to milliseconds, of at most a year.
func seconds(n float64) time.Duration {
	if n >= longest.Seconds() {
		return longest
	}
	return time.Duration(math.Ceil(n*1000)) * time.Millisecond
}

// resetOf reads the time of a reset: seconds from now; seconds since 1970, as GitHub has them; milliseconds since 1970;
// a date. It tells the numbers apart by their size: nobody waits for a billion seconds, and 1970 had no APIs.
func resetOf(s string, now time.Time) time.Duration {
	n, ok := number(s)
	switch {
	case !ok:
		return until(date(s, now), now)
	case n >= 1e11:
		return until(time.UnixMilli(int64(n)), now)
	case n >= 1e9:
		return until(time.UnixMilli(int64(n*1000)), now)
	}
	return seconds(n)
}

// date reads an HTTP date, or ISO 8601 with or without seconds, as Jira has it. It returns now if it can't.
func date(s string, now time.Time) time.Time {
	t, err := http.ParseTime(s)
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04Z07:00"} {
		if err != nil {
			t, err = time.Parse(layout, s)
		}
	}
	if err != nil {
		return now
	}
	return t
}

// threeFields adds the predecessors of RateLimit: -Limit, -Remaining and -Reset, each with a value or with one for each
// of several windows. It adds policies, too: in a field of their own, or in the drafts up to 02 behind the limit: 100,
// 100;w=60.
func threeFields(quotas []Quota, h http.Header, prefix string, now time.Time) []Quota {
	values := func(name string) []string {
		field := strings.Join(h.Values(prefix+name), ",")
		if _, err := http.ParseTime(field); err == nil {
			return []string{field} // a date has a comma
		}
		return strings.SplitN(field, ",", mostQuotas+1)
	}
	at := func(values []string, i int) string {
		if i >= len(values) {
			return ""
		}
		value, _, _ := strings.Cut(values[i], ";")
		return value
	}
	limits, remaining, resets := values("Limit"), values("Remaining"), values("Reset")
	for i := range remaining {
		q := Quota{
			Name: h.Get(prefix + "Resource"), Unit: "requests",
			Limit: count(at(limits, i)), Remaining: count(at(remaining, i)), Reset: resetOf(at(resets, i), now),
		}
		// Some providers count on below zero, but others have -1 for no limit.
		if below, negative := strings.CutPrefix(strings.TrimSpace(at(remaining, i)), "-"); negative && q.Limit > 0 && count(below) > 0 {
			q.Remaining = 0
		}
		if q.Limit != Unknown || q.Remaining != Unknown || q.Reset != 0 {
			quotas = append(quotas, q)
		}
	}
	policies := append(policiesOf(strings.Join(h.Values(prefix+"Policy"), ","), true), policiesOf(strings.Join(limits[1:], ","), true)...)
	for _, p := range policies {
		i := slices.IndexFunc(quotas, func(q Quota) bool { return q.Limit == p.Limit && q.Window == 0 })
		switch {
		case i >= 0:
			quotas[i].Window = p.Window
		case p.Window > 0:
			quotas = append(quotas, p)
		}
	}
	return quotas
}

// standard reads RateLimit and RateLimit-Policy. It ignores all of a malformed field.
func standard(h http.Header) []Quota {
	quotas := policiesOf(strings.Join(h.Values("RateLimit-Policy"), ","), false)
	limits := limitsOf(strings.Join(h.Values("RateLimit"), ","))
	for _, l := range limits {
		i := slices.IndexFunc(quotas, func(q Quota) bool { return q.Name == l.Name && (q.Key == l.Key || q.Key == "" || l.Key == "") })
		if i < 0 {
			quotas = append(quotas, l)
			continue
		}
		quotas[i].Remaining, quotas[i].Reset = l.Remaining, l.Reset
		if l.Key != "" {
			quotas[i].Key = l.Key
		}
	}
	return quotas
}

// policiesOf reads "burst";q=100;w=60, or in the drafts up to 07, which are numbered here, 100;w=60.
func policiesOf(field string, numbered bool) []Quota {
	members, ok := parseList(field)
	if !ok {
		return nil
	}
	var quotas []Quota
	for _, m := range members {
		q := Quota{Unit: "requests", Limit: Unknown, Remaining: Unknown}
		var limit any
		switch v := m.value.(type) {
		case string:
			if numbered {
				return nil
			}
			q.Name, limit = v, m.parameters["q"]
		case int64:
			if !numbered {
				return nil
			}
			limit = v
		default:
			return nil
		}
		q.Limit, ok = limit.(int64)
		if !ok || q.Limit < 0 || !m.window("w", &q.Window) || !m.text("qu", &q.Unit) || !m.bytes("pk", &q.Key) {
			return nil
		}
		if _, said := m.parameters["w"]; said && q.Window == 0 {
			return nil
		}
		quotas = append(quotas, q)
	}
	return quotas
}

// limitsOf reads "burst";r=50;t=30, or in draft 07 limit=100, remaining=50, reset=30.
func limitsOf(field string) []Quota {
	members, ok := parseList(field)
	if !ok {
		return draft07(field)
	}
	var quotas []Quota
	for _, m := range members {
		q := Quota{Unit: "requests", Limit: Unknown}
		q.Name, ok = m.value.(string)
		r, isInt := m.parameters["r"].(int64)
		if !ok || !isInt || r < 0 || !m.window("t", &q.Reset) || !m.bytes("pk", &q.Key) {
			return nil
		}
		q.Remaining = r
		quotas = append(quotas, q)
	}
	return quotas
}

func draft07(field string) []Quota {
	q := Quota{Unit: "requests", Limit: Unknown, Remaining: Unknown}
	for member := range strings.SplitSeq(field, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(member), "=")
		value, _, _ = strings.Cut(value, ";")
		n := count(value)
		if n == Unknown {
			return nil
		}
		switch key {
		case "limit":
			q.Limit = n
		case "remaining":
			q.Remaining = n
		case "reset":
			q.Reset = seconds(float64(n))
		}
	}
	if q.Remaining == Unknown {
		return nil
	}
	return []Quota{q}
}

// window, text and bytes read a parameter that may be missing. They return false if it is of another type.
func (m member) window(name string, to *time.Duration) bool {
	v, there := m.parameters[name]
	n, ok := v.(int64)
	if ok {
		*to = seconds(float64(n))
	}
	return !there || ok && n >= 0
}

func (m member) text(name string, to *string) bool {
	v, there := m.parameters[name]
	s, ok := v.(string)
	if ok {
		*to = s
	}
	return !there || ok
}

func (m member) bytes(name string, to *string) bool {
	v, there := m.parameters[name]
	b, ok := v.([]byte)
	if ok {
		*to = string(b)
	}
	return !there || ok
}
