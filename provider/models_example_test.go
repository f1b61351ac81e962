package provider_test

import (
	"context"
	"fmt"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/provider"
	"github.com/drip-go/drip/worker"
)

// A consumer of a language model asks with the input and the most output, which it knows before a call. It settles the
// usage in the response. The input limit binds here: 30,000 tokens a minute.
func ExampleAnthropic() {
	type prompt struct {
		customer  string
		input     int // tokens, counted or estimated
		maxTokens int
	}
	options, err := provider.Anthropic(50, 30_000, 8_000).Options(50 * time.Millisecond) // calls, input and output tokens a minute
	if err != nil {
		fmt.Println(err)
		return
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
	for range 4 {
		out := w.Do(context.Background(), prompt{"acme", 9_000, 2_000}, "", func(ctx context.Context) error {
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
