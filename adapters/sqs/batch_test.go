package dripsqs

import (
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// Messages that are too large for one call together are sent, and a message that SQS refuses takes no other along.
func TestBatches(t *testing.T) {
	const kib = 1024
	for name, c := range map[string]struct {
		bodies  []int // sizes
		delays  []int32
		refused int
	}{
		"small":               {bodies: []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
		"one alone":           {bodies: []int{1}},
		"too large in all":    {bodies: []int{900 * kib, 900 * kib, 900 * kib, 900 * kib}},
		"one too large":       {bodies: []int{1, 1, 1, 1025 * kib, 1}, refused: 1},
		"a delay too long":    {bodies: []int{1, 1, 1, 1, 1}, delays: []int32{0, 0, 901, 0, 0}, refused: 1},
		"all delays too long": {bodies: []int{1, 1}, delays: []int32{901, 901}, refused: 2},
	} {
		t.Run(name, func(t *testing.T) {
			q := opened(t, "batches", nil)
			var running, callers sync.WaitGroup
			sends := (&Limit{client: q.client}).sends(q.url, &running)
			errs := make([]error, len(c.bodies))
			for i, n := range c.bodies {
				body := strings.Repeat("x", n)
				e := types.SendMessageBatchRequestEntry{MessageBody: &body}
				if c.delays != nil {
					e.DelaySeconds = c.delays[i]
				}
				callers.Go(func() { errs[i] = sends.do(t.Context(), e) })
			}
			callers.Wait()
			running.Wait()
			refused := 0
			for i, err := range errs {
				if wrong := c.bodies[i] > 1024*kib || c.delays != nil && c.delays[i] > 900; (err != nil) != wrong {
					t.Errorf("message %d: %v", i, err)
				}
				if err != nil {
					refused++
				}
			}
			if left, err := q.Left(t.Context()); err != nil || left != len(c.bodies)-c.refused || refused != c.refused {
				t.Errorf("%d messages are in the queue (%v), %d were refused of %d", left, err, refused, len(c.bodies))
			}
		})
	}
}
