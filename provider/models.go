package provider

import (
	"time"

	"github.com/drip-go/drip"
)

// The units of the presets of language models. They are the names in Request.Costs and in Bucket.Settle.
const (
	Tokens       = "tokens" // input and output together
	InputTokens  = "input tokens"
	OutputTokens = "output tokens"
)

// Anthropic returns the limits of the Claude API for one class of models: calls, input tokens and output tokens a
// minute. The three numbers depend on model and tier; the Console's page of limits shows them. Preset.About says how
// tokens count. Parse reads the Retry-After of a refusal. It does not read the fields anthropic-ratelimit-…: their
// reset is the time at which the limit is full again.
func Anthropic(calls, input, output int) Preset {
	return Preset{
		Name: "Anthropic", Entity: "organization and class of models", Wait: time.Minute,
		About: "The limits refill continuously. Input that is read from the cache does not count on most models. Output counts by " +
			"max_tokens when a call begins, and by its real number when it ends: ask for max_tokens and settle the usage of the " +
			"response. Short bursts may be refused below the limits.",
		Rules:  rules(aMinute(calls), aMinute(input).Of(InputTokens), aMinute(output).Of(OutputTokens)),
		Source: "https://platform.claude.com/docs/en/api/rate-limits", Checked: checked,
	}
}

// anthropicTier1 is the lowest tier that Anthropic published in 2025.
func anthropicTier1() []Preset {
	p := Anthropic(50, 30_000, 8_000)
	p.Name += ", tier 1"
	p.About += " These are numbers of 2025, for Claude Sonnet 4 and Opus 4, to try limits with. Anthropic now has other tiers, with other " +
		"limits. The Console shows the limits of your account."
	return []Preset{p}
}

// OpenAI returns the limits of OpenAI's API for one model: calls, and input and output tokens together, a minute. The
// numbers depend on model and tier. The page of a model and the account's limits show them, and so do the headers
// x-ratelimit-limit-requests and -tokens. Parse reads the Retry-After of a refusal. It does not read the fields
// x-ratelimit-reset-requests and -tokens: they tell when the limit is full again.
func OpenAI(calls, tokens int) Preset {
	return Preset{
		Name: "OpenAI", Entity: "organization or project, and model", Wait: time.Minute,
		About:  "A call counts by its input and the most output that it asks for. Short bursts may be refused below the limits.",
		Rules:  rules(aMinute(calls), aMinute(tokens).Of(Tokens)),
		Source: "https://developers.openai.com/api/docs/guides/rate-limits", Checked: checked,
	}
}

// Gemini returns the limits of Google's Gemini API for one model: calls and input tokens a minute, and calls a day. The
// numbers depend on model and tier. Google does not publish them; AI Studio shows them.
func Gemini(calls, input, callsADay int) Preset {
	daily := SlidingWindow(callsADay, day).Burst(max(1, callsADay/4)) // in any 24 hours
	if pacific, err := time.LoadLocation("America/Los_Angeles"); err == nil {
		daily = Calendar(callsADay, drip.Daily(pacific))
	}
	return Preset{
		Name: "Gemini", Entity: "project and model", Wait: time.Minute,
		About: "The day ends at midnight of Pacific time. A twentieth of its calls, at least one, may be in flight, and as many are left " +
			"out. A program without a time zone database keeps the calls a day in any 24 hours. A quarter of the tokens may be taken " +
			"at once, so a call has at most as many.",
		Rules: rules(
			SlidingWindow(calls, time.Minute), SlidingWindow(input, time.Minute).Burst(max(1, input/4)).Of(InputTokens), daily,
		),
		Source: "https://ai.google.dev/gemini-api/docs/rate-limits", Checked: checked,
	}
}

// aMinute is a bucket that fills in a minute.
func aMinute(n int) Rule { return TokenBucket(n, float64(n)/60) }
