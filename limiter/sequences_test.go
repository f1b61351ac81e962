package limiter_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip/limiter"
)

// A sequence of calls and what each must answer, as in testdata/limiter.json. Times are milliseconds.
type sequence struct {
	ID       string
	Limit    float64
	Duration float64 `json:"duration_s"`
	Note     string
	Steps    []step
}

type step struct {
	At   *float64 `json:"at_ms"` // nil: when the last call returned
	Op   string
	Args []any
	Want string
}

// TestSequences has the sequences on which the public SDKs agree.
func TestSequences(t *testing.T) {
	data, err := os.ReadFile("testdata/limiter.json")
	must(t, err)
	var sequences []sequence
	must(t, json.Unmarshal(data, &sequences))
	if len(sequences) != 27 {
		t.Errorf("%d sequences", len(sequences))
	}
	for _, s := range sequences {
		run(t, s)
	}
}

// TestChoices has sequences on which the SDKs differ, or agree on what should be otherwise. A line is an ID, limit and
// duration, and for each step the time, the call and its answer.
func TestChoices(t *testing.T) {
	for _, line := range strings.Split(strings.TrimSpace(choices), "\n") {
		fields := strings.Split(line, " | ")
		s := sequence{ID: fields[0]}
		if _, err := fmt.Sscan(fields[1], &s.Limit, &s.Duration); err != nil {
			t.Fatal(line, err)
		}
		for _, f := range fields[2:] {
			words := strings.Fields(f)
			var p step
			if words[0] != "." {
				at, err := strconv.ParseFloat(words[0], 64)
				if err != nil {
					t.Fatal(line, err)
				}
				p.At = &at
			}
			p.Op = words[1]
			i := 2
			for ; words[i] != "="; i++ {
				p.Args = append(p.Args, argument(words[i]))
			}
			p.Want = strings.Join(words[i+1:], " ")
			s.Steps = append(s.Steps, p)
		}
		run(t, s)
	}
}

func argument(word string) any {
	if f, err := strconv.ParseFloat(word, 64); err == nil {
		return f
	}
	return word == "true"
}

const choices = `
V03 boundary inclusive | 10 1 | 0 try 0 = true | 0 consume 1 = 0 | 0 try 0 = false | 99 try 0 = false | 100 try 0 = true | 100 try 1 = true | 100 try 1 = false
V04 saved since New | 100 5 | 5000 consume 500 = 0 | 5000 consume 1 = 0 | . consume 1 = 10
V07 a unit a duration | 0.2 1 | 0 getDuration = 5 | 0 getLimit = 0.2 | 0 consume 1 = 0 | 0 consume 1 = 5000 | . consume 1 = 5000
V09 no rounding | 3 1 | 0 consume 3 = 0 | 0 consume 0 = 1000 | . consume 0 = 0 | . consume 0 = 0
V09b one by one | 3 1 | 0 consume 1 = 0 | 0 now 1 = ok | 0 now 1 = ok | 0 consume 0 = 1000 | . consume 0 = 0
V10 nothing is left after the wait | 3 1 | 0 consume 1 = 0 | 0 consume 0 = 333.333333 | . consume 0 = 0
V11 no drift | 7 1 | 0 consume 7000000 = 0 | 0 consume 0 = 1000000000
V13 | 10 1 | 0 consume 1 = 0 | 0 consumeT 1 101 false = 100 | . consume 0 = 100
V14 always, and the timeout reported | 10 1 | 0 consume 10 = 0 | 0 consumeT 5 100 true = TIMEOUT after 100 | . consume 0 = 1400
V15 no timeout | 10 1 | 0 consume 10 = 0 | 0 consumeT 5 0 false = 1000 | . consume 0 = 500
V16 negative timeout | 10 1 | 0 consume 10 = 0 | 0 consumeT 5 -5 false = INVALID | . consume 0 = 1000
V17 and always | 10 1 | 0 consume 10 = 0 | 0 consumeT 5 -5 true = INVALID | . consume 0 = 1000
V18 and nothing owed | 10 1 | 0 consumeT 5 -5 false = INVALID | 0 consume 0 = 0
V19 | 10 1 | 0 consume 10 = 0 | 0 consumeT 5 -1 false = INVALID | . consume 0 = 1000
V22 give back | 10 1 | 0 consume 10 = 0 | 0 try -5 = true | 0 consumeT -2 1 false = 0 | 0 consume 0 = 300
V24 raise: saved time stays | 10 30 | 0 consume 0 = 0 | 10000 setLimit 100 = ok | 10000 consume 100 = 0 | 10000 consume 1 = 0 | 10000 consume 1 = 0 | 10000 consume 900 = 0 | 10000 consume 1 = 20
V25 lower | 100 30 | 0 consume 0 = 0 | 10000 setLimit 10 = ok | 10000 consume 100 = 0 | 10000 consume 1 = 0 | 10000 consume 1 = 100
V25b | 100 30 | 0 consume 0 = 0 | 10000 setLimit 10 = ok | 10000 consume 300 = 0 | 10000 consume 0 = 20000 | . consume 1 = 0 | . consume 0 = 100
V26b owed time stays | 100 30 | 0 consume 100 = 0 | 0 setLimit 10 = ok | 0 consume 0 = 1000
V28 Unlimited keeps what is owed | 10 1 | 0 consume 10 = 0 | 0 setLimit Inf = ok | 0 consume 1000 = 0 | 0 try 1000 = true | 0 now 1000 = ok | 0 consume -1000 = 0 | 0 getLimit = Unlimited | 0 getRate = 0 | 0 setLimit 10 = ok | 0 consume 0 = 1000
V30 least duration | 100 0 | 0 getDuration = 0.01 | 0 consume 10 = 0 | 0 consume 10 = 100 | . consume 0 = 100
V33 reset forgives | 10 1 | 0 consume 100 = 0 | 0 reset = ok | 0 consume 0 = 0
V36 rate 0 | 10 1 | 0 setRate 0 = ok | 0 getRate = 0 | 0 consume 10 = 0 | 0 consume 1 = 0 | 0 consume 1 = 100
V39 rate -400 | 10 5 | 0 setRate -400 = ok | 0 getRate = 0 | 0 consume 50 = 0 | 0 consume 1 = 0 | 0 consume 1 = 100
V42 now | 10 1 | 0 now 20 = ok | 0 try 0 = false | 0 now -15 = ok | 0 consume 0 = 500 | . try 0 = true
V45 throttled keeps what is owed | 10 30 | 0 consume 100 = 0 | 0 throttled = ok | 0 consume 0 = 10000
V47 3e9 a second | 3e9 1 | 0 consume 3e9 = 0 | 0 consume 0 = 1000 | 0 getLimit = 3000000000
V48 6e8 | 6e8 1 | 0 consume 6e8 = 0 | 0 consume 0 = 1000
V49 15e6 | 15e6 1 | 0 consume 15e6 = 0 | 0 consume 0 = 1000 | . consume 1 = 0 | . consume 0 = 0.000067
V50 35 days | 1 1 | 0 consume 3000000 = 0 | 0 try 0 = false | 0 consume 0 = 3000000000
V51 317 years | 1 1 | 0 consume 1e10 = 0 | 0 try 0 = false | 0 consumeT 0 1000 false = TIMEOUT after 1000 | . now -1e10 = ok | . consume 0 = 0
V28b zero is no limit | 10 1 | 0 consume 10 = 0 | 0 setLimit 0 = ok | 0 consume 1000 = 0 | 0 getLimit = Unlimited | 0 setLimit 10 = ok | 0 consume 0 = 1000
V52 negative is no limit | -5 1 | 0 consume 100 = 0 | 0 consume 100 = 0 | 0 getLimit = Unlimited | 0 getDuration = 1
V54 lower at once | 10 30 | 0 setLimit 5 = ok | 0 consume 1 = 0 | 0 consume 1 = 200
V55 raise at once | 10 30 | 0 setLimit 20 = ok | 0 consume 1 = 0 | 0 consume 1 = 50
V58 26 a second | 26 1 | 0 consume 26 = 0 | 0 consume 0 = 1000 | . consume 1 = 0
V59 | 10 1 | 0 consume 0 = 0 | 500 consume 3 = 0 | 500 consume 3 = 0 | 500 consume 3 = 100
V62 a timeout leaves no trace | 10 1 | 0 consume 1 = 0 | 50 consumeT 1 50 false = TIMEOUT after 50 | . consume 1 = 0 | . consume 1 = 100
V63 NaN | 10 1 | 0 setLimit NaN = INVALID | 0 consume 100 = 0 | 0 consume 0 = 10000
W11 a tenth of a millisecond | 10000 1 | 0 consume 1 = 0 | 0 consumeT 1 1 false = 0.1
W12 99.9 is below 100 | 1000 1 | 0 consume 100 = 0 | 0.1 consumeT 1 100 false = 99.9
W14 too low | 10 1 | 0 setLimit 1e-12 = INVALID | 0 consume 1 = 0 | 0 consume 0 = 100
W15 | 7 1 | 0 getLimit = 7 | 0 setLimit 0.3 = ok | 0 getLimit = 0.3 | 0 getDuration = 3.333333333
W16 negative duration | 10 1 | 0 setDuration -5 = INVALID | 0 getDuration = 1
W17 any duration | 10 8.2 | 0 getDuration = 8.2 | 20000 consume 82 = 0 | . consume 1 = 0 | . consume 0 = 100
W19 half a unit | 10 1 | 0 consume 0.5 = 0 | . consume 0 = 50
W19b tenths | 10 1 | 0 consume 0.1 = 0 | 0 now 0.1 = ok | 0 now 0.1 = ok | 0 now 0.7 = ok | 100 try 0 = true | 100 consume 0 = 0
W20 no number | 10 1 | 0 consume NaN = INVALID | 0 consume Inf = INVALID | 0 try NaN = INVALID | 0 now -Inf = INVALID | 0 consumeT NaN 5 true = INVALID | 0 setRate NaN = INVALID | 0 setRate Inf = INVALID | 0 consume 0 = 0
X1 too many to count | 10 1 | 0 consume 1e300 = INVALID | 0 now -1e300 = INVALID | 0 now 9e12 = ok | 0 now 9e12 = INVALID | 0 now -9e12 = ok | 0 consume 0 = 0
X2 fractions of nanoseconds add up | 3e9 1 | 0 consume 1 = 0 | 0 now 1 = ok | 0 now 1 = ok | 0 consume 0 = 0.000001
X3 a longer duration counts from the last call | 10 1 | 0 consume 0 = 0 | 5000 consume 0 = 0 | 10000 setDuration 30 = ok | 10000 consume 60 = 0 | 10000 consume 0 = 0 | . consume 1 = 0 | . consume 0 = 100
X4 throttled drops only what is saved | 10 30 | 0 consume 0 = 0 | 10000 throttled = ok | 10000 getRate = 100 | 10000 consume 1 = 0 | 10000 consume 0 = 100
`

// run plays a sequence: on a limiter in memory, and on one in a storage, which must make no difference.
func run(t *testing.T, s sequence) {
	t.Run(s.ID, func(t *testing.T) {
		both(t, limiter.Options{Limit: s.Limit, Duration: seconds(s.Duration)}, func(t *testing.T, l *limiter.Limiter) { play(t, s, l) })
	})
}

func play(t *testing.T, s sequence, l *limiter.Limiter) {
	if s.Duration == 0 {
		must(t, l.SetDuration(0))
	}
	start := time.Now()
	for i, p := range s.Steps {
		if p.At != nil {
			time.Sleep(time.Until(start.Add(milliseconds(*p.At))))
		}
		called := time.Now()
		got := do(t, l, p)
		if got != p.Want {
			t.Fatalf("step %d, %v: %s%v = %s, want %s", i, called.Sub(start), p.Op, p.Args, got, p.Want)
		}
		blocked := float64(time.Since(called)) / 1e6
		want := strings.TrimPrefix(got, "TIMEOUT after ")
		if !strings.HasPrefix(p.Op, "consume") || got == "INVALID" {
			want = "0"
		}
		if number(blocked) != want {
			t.Fatalf("step %d, %v: %s%v blocked for %v ms, want %s", i, called.Sub(start), p.Op, p.Args, blocked, want)
		}
	}
}

func do(t *testing.T, l *limiter.Limiter, p step) string {
	ctx := t.Context()
	arg := func(i int) float64 { return p.Args[i].(float64) }
	var waited time.Duration
	var answer string
	var err error
	switch p.Op {
	case "consume":
		waited, err = l.Consume(ctx, arg(0))
		answer = number(float64(waited) / 1e6)
	case "consumeT":
		waited, err = l.ConsumeTimeout(ctx, arg(0), milliseconds(arg(1)), p.Args[2].(bool))
		answer = number(float64(waited) / 1e6)
	case "try":
		var ok bool
		ok, err = l.TryConsume(ctx, arg(0))
		answer = strconv.FormatBool(ok)
	case "now", "uncond":
		answer, err = "ok", l.ConsumeNow(ctx, arg(0))
	case "setLimit":
		answer, err = "ok", l.SetLimit(arg(0))
	case "getLimit":
		if answer = "Unlimited"; l.Limit() != limiter.Unlimited {
			answer = number(l.Limit())
		}
	case "setDuration":
		answer, err = "ok", l.SetDuration(seconds(arg(0)))
	case "getDuration":
		answer = number(l.Duration().Seconds())
	case "reset":
		answer, err = "ok", l.Reset(ctx)
	case "setRate":
		answer, err = "ok", l.SetCurrentRate(ctx, arg(0))
	case "getRate":
		var rate float64
		rate, err = l.CurrentRate(ctx)
		answer = number(rate)
	case "throttled", "driverThrottle":
		answer, err = "ok", l.Throttled(ctx)
	default:
		t.Fatalf("unknown operation %q", p.Op)
	}
	switch {
	case errors.Is(err, limiter.ErrTimeout):
		return "TIMEOUT after " + answer
	case errors.Is(err, limiter.ErrInvalid):
		return "INVALID"
	case err != nil:
		t.Fatal(err)
	}
	return answer
}

func newLimiter(t *testing.T, o limiter.Options) *limiter.Limiter {
	t.Helper()
	l, err := limiter.New(o)
	must(t, err)
	return l
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func milliseconds(ms float64) time.Duration { return time.Duration(math.Round(ms * 1e6)) }

func seconds(s float64) time.Duration { return time.Duration(math.Round(s * 1e9)) }
