package provider

import "time"

// The units of the presets of language models. They are the names in Request.Costs and in Bucket.Settle.
const (
	Tokens       = "tokens" // input and output together
	InputTokens  = "input tokens"
	OutputTokens = "output tokens"
)

// Anthropic is the Claude API: calls, input and output tokens a minute of one class of models, which refill continuously. The
// three numbers depend on model and tier, and the Console's page of limits shows them. Input that is read from the cache does
// not count on most models. Output counts by max_tokens when a call begins and by what it was when it ends: ask for
// max_tokens and settle the usage of the response. Short bursts may be refused below the limits.
func Anthropic(calls, input, output int) Preset {
	return Preset{
		"Anthropic", "organization and class of models", []Rule{
			aMinute(calls), aMinute(input).Of(InputTokens), aMinute(output).Of(OutputTokens),
		}, nil, time.Minute, "https://platform.claude.com/docs/en/api/rate-limits", "2026-11",
	}
}

// AnthropicTier1 is the lowest tier that is published, of Sonnet 4 and Opus 4. Newer models and tiers have more.
var AnthropicTier1 = Anthropic(50, 30_000, 8_000)

// OpenAI is the API of OpenAI: calls, and input and output tokens together, a minute of one model. The numbers depend on model
// and tier: the page of a model and the account's limits show them, and so do the headers x-ratelimit-limit-requests and
// x-ratelimit-limit-tokens. A call counts by its input and the most output that it asks for. Short bursts may be refused below
// the limits.
func OpenAI(calls, tokens int) Preset {
	return Preset{
		"OpenAI", "organization or project, and model", []Rule{aMinute(calls), aMinute(tokens).Of(Tokens)}, nil, time.Minute,
		"https://developers.openai.com/api/docs/guides/rate-limits", "2026-11",
	}
}

// Gemini is Google's Gemini API: calls and input tokens a minute, and calls a day, which ends at midnight of Pacific time, of
// one model. The numbers depend on model and tier; they are not published, but AI Studio shows them. A quarter of the tokens may
// be taken at once, so a call has at most as many.
func Gemini(calls, input, callsADay int) Preset {
	return Preset{
		"Gemini", "project and model", []Rule{
			SlidingWindow(calls, time.Minute), SlidingWindow(input, time.Minute).Burst(input / 4).Of(InputTokens),
			SlidingWindow(callsADay, day).Burst(max(1, callsADay/4)),
		}, nil, time.Minute, "https://ai.google.dev/gemini-api/docs/rate-limits", "2026-11",
	}
}

// aMinute is a bucket that fills in a minute.
func aMinute(n int) Rule { return TokenBucket(n, float64(n)/60) }
