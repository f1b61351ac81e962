package consumer

import (
	"math/rand/v2"
	"testing"
	"time"
)

// The wheel never lets a message go too early or much too late, makes progress with each trip, and has at any
// time only messages of one slot in a queue: then none waits behind another.
func TestWheel(t *testing.T) {
	const start = 1_700_000_000_000
	for _, held := range []bool{true, false} {
		type queue struct {
			ring  int
			queue int64
		}
		leaves := map[queue]int64{} // of the messages last put into a queue
		rnd := rand.New(rand.NewPCG(1, 2))
		for now := int64(start); now < start+3_000_000; now += rnd.Int64N(300) {
			delay := rnd.Int64N(1 << (1 + rnd.Int64N(33))) // every magnitude, up to 99 days
			due := now + delay
			p, wait := placeFor(now, due, held)
			if !wait {
				if longest := rings[0].Width + early; held && delay > longest || !held && delay > 0 {
					t.Fatalf("a message due in %d ms does not wait, held=%v", delay, held)
				}
				continue
			}
			r := rings[p.ring]
			switch {
			case p.leave <= now:
				t.Fatalf("a message put at %d leaves at %d", now, p.leave)
			case p.ring > 0 && p.leave > due-lead:
				t.Fatalf("a message due at %d comes back from ring %d at %d, too late to be placed", due, p.ring, p.leave)
			case p.ring == 0 && held && (p.leave > due || due-p.leave > r.Width+early):
				t.Fatalf("a message due at %d, to be held, leaves at %d", due, p.leave)
			case p.ring == 0 && !held && (p.leave < due || p.leave-due >= r.Width):
				t.Fatalf("a message due at %d leaves at %d", due, p.leave)
			case p.queue < 0 || p.queue >= r.Slots:
				t.Fatalf("queue %d of %d", p.queue, r.Slots)
			}
			q := queue{p.ring, p.queue}
			if other := leaves[q]; other > now && other != p.leave {
				t.Fatalf("queue %+v holds messages that leave at %d and now one that leaves at %d", q, other, p.leave)
			}
			leaves[q] = p.leave
		}
	}
}

func TestEveryDelayEnds(t *testing.T) {
	for delay := time.Millisecond; delay <= longestDelay; delay = delay*5/4 + 1 {
		for _, held := range []bool{true, false} {
			now := int64(1_700_000_000_123)
			due := now + delay.Milliseconds()
			trips := 0
			for {
				p, wait := placeFor(now, due, held)
				if !wait || p.leave >= due {
					break
				}
				now = p.leave + 3
				trips++
			}
			if most := 5 + int(delay/(3*time.Hour)); trips > most {
				t.Errorf("a delay of %v takes %d trips, want at most %d", delay, trips, most)
			}
		}
	}
}

func TestEverydayQueues(t *testing.T) {
	n := int64(0)
	for _, r := range everyday {
		n += r.Slots
	}
	if n > 64 {
		t.Errorf("%d queues for everyday use, want at most 64", n)
	}
	p, _ := placeFor(0, 18*60*1000, true)
	if p.ring > 2 {
		t.Errorf("18 minutes take ring %d, which is not for everyday use", p.ring)
	}
	if name := (place{ring: 0, queue: 7}).name(); name != "250ms.07" {
		t.Errorf("name = %q", name)
	}
	if name := (place{ring: 3, queue: 15}).name(); name != "1024s.15" {
		t.Errorf("name = %q", name)
	}
}
