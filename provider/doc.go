// Package provider is about the other side: which limits the well-known APIs have, and what their responses say.
//
// A [Preset] has the limits of an API as data, and its Options are those of a bucket that keeps them, with the limits that
// entities share: those of the app, of the user.
//
//	xero, err := provider.Named("Xero")
//	options, err := xero.Options(50 * time.Millisecond)
//	bucket, err := drip.New(options)
//
// For an API that is not among the [Presets] say what it allows with [LeakyBucket], [TokenBucket], [FixedWindow],
// [SlidingWindow] and [Concurrency], and call [Limit] and [Options].
//
// [Read] says what a response tells of the limit: whether the call was refused because of it, for how long, and what is
// left. It knows Retry-After, RateLimit and RateLimit-Policy, their predecessors, X-RateLimit, and what some providers have
// of their own. A [Transport] does that for all calls of an http.Client, and closes the entity in the bucket when the
// provider refuses one: other users of the same limit, or a limit that was lowered, are seen by no counter.
//
//	client := &http.Client{Transport: &provider.Transport{Bucket: bucket}}
//	…
//	request, err := http.NewRequestWithContext(provider.WithEntity(ctx, tenant), …)
//
// # From a provider's limit to drip's
//
// All follows from two facts. Capacity comes at the beginnings of intervals, which are aligned to Unix time, so of the
// operations that are admitted in a span of time that k beginnings fall into, at most Size + k·RefreshRate are. And at
// most Concurrency are in flight. A provider counts a request when it arrives, up to a time that is called travel here
// after it was admitted.
//
//   - Bucket of B that leaks, or refills, by r a second. In any span D it takes B + r·D. What arrives in D was admitted in
//     D + travel, where k beginnings fit only if D + travel > (k-1)·interval. With RefreshRate ≤ r·interval and Size = B -
//     RefreshRate - r·travel, Size + k·RefreshRate is at most B + r·((k-1)·interval - travel), and so at most B + r·D. If
//     that Size is too small, the interval is longer by travel instead, and Size is B - RefreshRate.
//   - N in any span of T. What counts together was admitted in T + travel. With an interval longer than (T + travel)/k
//     at most k beginnings fall into that, so Size and RefreshRate are N/(k+1) each.
//   - N in each window of T of the clock. Size = RefreshRate = N - Concurrency: of one interval at most so many are
//     admitted, and of the interval before only those still in flight may arrive in it.
//   - C at a time. Concurrency = C: a token is held from before the request is sent until its response is there.
//
// A rule that counts a unit of its own, such as tokens of a language model, is the same with that unit.
//
// This is about operations of one request each, whose tokens are given back when the response is there. It holds for
// costs as well, but for windows of the clock, where those in flight count one each.
package provider
