package storage_test

import (
	"math"
	"testing"

	"github.com/drip-go/drip/storage"
)

// Three a second of a bucket of five, asked step by step.
func TestGetDelay(t *testing.T) {
	l := storage.Limits{Window: storage.Window{Size: 5, RefreshRate: 3, RefreshInterval: 1000}, WaitForToken: 50, Start: 10_000}
	const returned = -1
	type step struct {
		now  int64
		want int64 // the delay, or returned for a token given back
	}
	for name, steps := range map[string][]step{
		"starts empty, and spreads what waits by three": {
			{10_000, 1000}, {10_001, 999}, {10_002, 998}, {10_003, 1997}, {10_500, 1500}, {10_999, 1001}, {10_999, 2001},
		},
		"the interval brings three": {
			{11_000, 0}, {11_000, 0}, {11_999, 0}, {11_999, 1}, {12_000, 0},
		},
		"never more than the bucket holds": {
			{99_000, 0}, {99_000, 0}, {99_000, 0}, {99_000, 0}, {99_000, 0}, {99_000, 1000}, {99_001, 999},
		},
		"only tokens are short": {
			{99_000, 0}, {99_000, 0}, {99_000, 0}, {99_000, 0}, {99_000, 0}, {100_000, 50}, {100_010, 40}, {100_020, 30}, {100_030, 970},
		},
		"tokens come back": {
			{99_000, 0}, {99_000, 0}, {99_000, 0}, {99_000, 0}, {99_000, 0},
			{99_100, returned}, {99_100, 900}, {100_000, 0}, {100_000, 50},
		},
		"a token too many is none": {
			{99_000, returned}, {99_000, 0}, {99_000, returned}, {99_000, returned}, {99_000, returned},
			{100_000, 0}, {100_000, 0}, {100_000, 0}, {100_000, 0}, {100_000, 0}, {100_000, 1000},
		},
		"a clock that steps back brings nothing": {
			{11_500, 0}, {11_500, 0}, {11_500, 0}, {10_500, 500}, {11_500, 500}, {9_000, 500}, {12_000, 0},
		},
		"the clock before 1970": {
			{-500, 1000},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := l.New()
			for i, step := range steps {
				if step.want == returned {
					giveBack(&l, &s)
					continue
				}
				var got int64
				if got = getDelay(&l, &s, step.now); got != step.want {
					t.Fatalf("step %d: GetDelay at %d = %d, want %d", i, step.now, got, step.want)
				}
			}
		})
	}
}

func apply(l *storage.Limits, s *storage.State, op storage.Op, now int64) (a storage.Answer) {
	l.Apply(s, &op, now, &a)
	return a
}

func getDelay(l *storage.Limits, s *storage.State, now int64) int64 {
	return apply(l, s, storage.Op{Kind: storage.GetDelay}, now).Delay
}

func giveBack(l *storage.Limits, s *storage.State) {
	apply(l, s, storage.Op{Kind: storage.ReturnToken}, 0)
}

// FuzzGetDelay drives entities through any limits and any times, and checks what must hold for all of them.
func FuzzGetDelay(f *testing.F) {
	f.Add(int64(5), int64(3), int64(1000), int64(50), int64(10_000), int64(10_000), []byte{0, 1, 2, 3, 200, 100, 9, 1, 1, 1})
	f.Add(int64(1), int64(32), int64(86_400_000), int64(10), int64(1_500_000_000_123), int64(1_500_001_396_256), []byte("\x00\x81\x42\x17\x99\xc0\xff"))
	f.Add(int64(math.MaxInt64), int64(1), int64(1), int64(1), int64(math.MinInt64), int64(math.MaxInt64), []byte{0, 64, 128, 192, 255})
	f.Add(int64(1), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MaxInt64), int64(math.MinInt64), []byte{255, 192, 128, 64, 0})
	f.Fuzz(func(t *testing.T, size, rate, interval, wait, start, now int64, steps []byte) {
		l := storage.Limits{Window: storage.Window{Size: size, RefreshRate: rate, RefreshInterval: interval}, WaitForToken: wait, Start: start}
		if l.Validate() != nil {
			t.Skip()
		}
		if len(steps) > 1000 {
			steps = steps[:1000]
		}
		var (
			s    = l.New()
			runs []int64 // the entity's interval of each run
			out  int64   // tokens, counted here
		)
		for i, b := range steps {
			switch b >> 6 { // two bits say what happens, six how far
			case 0:
				now = stay(now, int64(b&63)*(interval/16+1))
			case 1:
				now = stay(now, -int64(b&63)*(interval/16+1))
			case 2:
				giveBack(&l, &s)
				out = max(0, out-1)
				if s.InUse != out {
					t.Fatalf("step %d: %d tokens are out after a return, counted %d", i, s.InUse, out)
				}
				continue
			}
			before := s
			delay := getDelay(&l, &s, now)
			switch {
			case delay < 0:
				t.Fatalf("step %d: delay %d", i, delay)
			case delay == 0:
				out++
				if s.Ops.Last < before.Ops.Last {
					t.Fatalf("step %d: the entity's time ran backwards, from %d to %d", i, before.Ops.Last, s.Ops.Last)
				}
				runs = append(runs, floorDiv(s.Ops.Last, interval))
			case s.Ops != before.Ops:
				t.Fatalf("step %d: a postponement changed what has run from %+v to %+v", i, before.Ops, s.Ops)
			case s.Wait.Last < max(now, before.Ops.Last) || s.Wait.Capacity < 0:
				t.Fatalf("step %d: at %d a slot was booked at %+v", i, now, s.Wait)
			}
			if s.InUse != out || out > size {
				t.Fatalf("step %d: %d tokens are out, counted %d of %d", i, s.InUse, out, size)
			}
			if s.Ops.Capacity < 0 || s.Ops.Capacity > size {
				t.Fatalf("step %d: capacity %d of %d", i, s.Ops.Capacity, size)
			}
			if (s.Until == math.MaxInt64) != (out > 0) && s.Until < math.MaxInt64 {
				t.Fatalf("step %d: may be forgotten at %d with %d tokens out", i, s.Until, out)
			}
		}
		// Over any k intervals at most Size + k·RefreshRate run. Unsigned: the product may pass int64.
		for first := range runs {
			for last := first; last < len(runs); last++ {
				k := uint64(runs[last]-runs[first]) + 1
				allowed := uint64(size) + k*uint64(rate)
				overflowed := k > (math.MaxUint64-uint64(size))/uint64(rate)
				if n := uint64(last - first + 1); !overflowed && n > allowed {
					t.Fatalf("%d runs in %d intervals, allowed %d", n, k, allowed)
				}
			}
		}
	})
}

// stay adds without leaving the int64 range.
func stay(t, d int64) int64 {
	switch {
	case d > 0 && t > math.MaxInt64-d:
		return math.MaxInt64
	case d < 0 && t < math.MinInt64-d:
		return math.MinInt64
	}
	return t + d
}

func floorDiv(t, interval int64) int64 {
	n := t / interval
	if t%interval < 0 {
		n--
	}
	return n
}

// Forgetting an entity from State.Until on changes no later answer.
func FuzzForget(f *testing.F) {
	f.Add(int64(5), int64(3), int64(1000), int64(50), []byte{0, 1, 2, 3, 200, 100, 9, 1, 1, 1}, uint16(17), []byte{1, 2, 3, 4, 150, 160, 0, 0, 7})
	f.Add(int64(1), int64(9), int64(1), int64(1), []byte{0, 0, 0}, uint16(0), []byte{0, 0, 150, 0, 0})
	f.Add(int64(3), int64(200), int64(7), int64(90), []byte{0, 0, 0, 0, 0, 0, 0, 150, 150, 150}, uint16(3), []byte{0, 0, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, size, rate, interval, wait int64, before []byte, later uint16, after []byte) {
		l := storage.Limits{Window: storage.Window{Size: size, RefreshRate: rate, RefreshInterval: interval}, WaitForToken: wait, Start: 1_700_000_000_000}
		if l.Validate() != nil || max(size, rate, interval, wait) > 1<<40 {
			t.Skip()
		}
		s, now := l.New(), l.Start
		call := func(s *storage.State, b byte) int64 {
			if b >= 128 {
				giveBack(&l, s)
				return 0
			}
			return getDelay(&l, s, now)
		}
		for _, b := range before {
			now += int64(b%16) * interval / 8
			call(&s, b)
		}
		for s.InUse > 0 {
			giveBack(&l, &s)
		}
		if s.Until == 0 { // nothing was ever decided
			t.Skip()
		}
		now = max(now, s.Until) + int64(later)
		forgotten := l.New()
		for i, b := range after {
			now += int64(b%16) * interval / 8
			want := call(&s, b)
			if got := call(&forgotten, b); got != want {
				t.Fatalf("call %d at %d: a forgotten entity is told %d, one that was kept %d", i, now, got, want)
			}
		}
	})
}
