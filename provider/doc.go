// Package provider has the limits of well-known APIs, and reads the limits that their responses tell.
//
// A [Preset] has the limits of an API as data. Its Options make a bucket that keeps them, including the limits that
// entities share, such as the limit of the app or of the user.
//
//	xero, err := provider.Named("Xero")
//	options, err := xero.Options(50 * time.Millisecond)
//	bucket, err := drip.New(options)
//
// For an API that is not among the [Presets], describe its limits with [LeakyBucket], [TokenBucket], [FixedWindow],
// [SlidingWindow] and [Concurrency]. Then call [Limit] and [Options].
//
// [Read] reads the limit from a response: whether the provider refused the call because of it, for how long, and how
// much is left. It knows Retry-After, RateLimit and RateLimit-Policy, their predecessors, X-RateLimit, and fields of
// some providers. A [Transport] does that for all calls of an http.Client. It closes the entity in the bucket when the
// provider refuses a call. That is needed because no counter sees other users of the same limit, or a limit that was
// lowered.
//
//	client := &http.Client{Transport: &provider.Transport{Bucket: bucket}}
//	…
//	request, err := http.NewRequestWithContext(provider.WithEntity(ctx, tenant), …)
//
// # From a provider's limit to drip's
//
// The conversion follows from two facts. Capacity comes at the beginnings of intervals, which are aligned to Unix time.
// So a span of time with k beginnings admits at most Size + k·RefreshRate operations. And at most Concurrency
// operations are in flight. A provider counts a request when it arrives. The time from its admission to its arrival is
// at most travel.
//
//   - Bucket of B that leaks, or refills, by r a second. In any span D it takes B + r·D. The requests that arrive in D
//     were admitted in D + travel, where k beginnings fit only if D + travel > (k-1)·interval. With RefreshRate ≤
//     r·interval and Size = B - RefreshRate - r·travel, Size + k·RefreshRate is at most B + r·((k-1)·interval -
//     travel), and so at most B + r·D. If that Size is too small, the interval is longer by travel instead, and Size is
//     B - RefreshRate.
//   - N in any span of T. The requests that count together were admitted in T + travel. With an interval longer than
//     (T + travel)/k at most k beginnings fall into that, so Size and RefreshRate are N/(k+1) each.
//   - N in each window of T of the clock. Size = RefreshRate = N - Concurrency. One interval admits at most N -
//     Concurrency operations, and only the requests in flight at its beginning may arrive in it besides.
//   - C at a time. Concurrency = C: an operation holds a token from before the request is sent until its response is
//     there.
//
// A rule that counts a unit of its own, such as tokens of a language model, is the same with that unit.
//
// This assumes operations of one request each, which give their tokens back when the response is there. It also holds
// for costs, except with windows of the clock, where each operation in flight counts one.
package provider
