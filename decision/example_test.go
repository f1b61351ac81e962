package decision_test

import (
	"fmt"

	"github.com/drip-go/drip/decision"
)

// A backend that decides beside its data: it reads the state, applies the operation and writes the state back.
func ExampleLimits_Apply() {
	limits := decision.Limits{
		Windows: []decision.Window{{Size: 2, Rate: 2, Interval: 1000}}, // milliseconds
		Tokens:  2, Guess: 50, Lease: 60_000, MaxLease: 3_600_000,
	}
	if field, _ := limits.Ready(); field != "" {
		fmt.Println("this makes no sense:", field)
		return
	}
	var state decision.State // what is stored; this entity is not
	now := int64(1_767_268_800_000)
	for range 3 {
		var answer decision.Answer
		limits.Apply(&state, decision.Counted(0), &decision.Op{Kind: decision.GetDelay, Now: now}, now, &answer)
		fmt.Println(answer.Delay, "ms")
	}
	// Output:
	// 0 ms
	// 0 ms
	// 1000 ms
}
