package consumer

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drip-go/drip/internal/wheel"
)

// A message never leaves its queue too early or much too late, and makes progress with each trip. A queue has at any time only
// messages of one slot, so none waits behind another.
func TestWheel(t *testing.T) {
	for _, l := range wheel.Layouts {
		for _, held := range []bool{true, false} {
			t.Run(fmt.Sprint(l.Name, " held=", held), func(t *testing.T) { turns(t, l, held) })
		}
	}
}

func turns(t *testing.T, l *wheel.Layout, held bool) {
	const start = 1_700_000_000_000
	type queue struct {
		ring  int
		queue int64
	}
	leaves := map[queue]int64{} // of the messages last put into a queue
	rnd := rand.New(rand.NewPCG(1, 2))
	for now := int64(start); now < start+3_000_000; now += rnd.Int64N(300) {
		delay := rnd.Int64N(1 << (1 + rnd.Int64N(33))) // every magnitude, up to 99 days
		due := now + delay
		p, wait := placeFor(l, now, due, held)
		if !wait {
			if longest := l.Rings[0].Width + early; held && delay > longest || !held && delay > 0 {
				t.Fatalf("a message due in %d ms does not wait, held=%v", delay, held)
			}
			continue
		}
		r := l.Rings[p.ring]
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

func TestEveryDelayEnds(t *testing.T) {
	for _, l := range wheel.Layouts {
		for delay := time.Millisecond; delay <= longestDelay; delay = delay*5/4 + 1 {
			for _, held := range []bool{true, false} {
				now := int64(1_700_000_000_123)
				due := now + delay.Milliseconds()
				trips := 0
				for {
					p, wait := placeFor(l, now, due, held)
					if !wait || p.leave >= due {
						if held && due-now > l.Rings[0].Width+early || !held && due > now && !wait {
							t.Errorf("%s: after %d trips of a delay of %v the last %d ms have no place, held=%v", l.Name, trips, delay, due-now, held)
						}
						break
					}
					now = p.leave + 3
					trips++
				}
				last := l.Rings[len(l.Rings)-1]
				if most := 5 + int(delay.Milliseconds()/(last.Width*(last.Slots-4))); trips > most {
					t.Errorf("%s: a delay of %v takes %d trips, want at most %d", l.Name, delay, trips, most)
				}
			}
		}
	}
}

func TestEverydayQueues(t *testing.T) {
	for l, want := range map[*wheel.Layout]struct {
		queues, all int64
		reach       time.Duration
	}{&wheel.Standard: {64, 80, 19 * time.Minute}, &wheel.Few: {18, 34, 2 * time.Minute}} {
		var everyday, all int64
		for i, r := range l.Rings {
			if all += r.Slots; i < l.Everyday {
				everyday += r.Slots
			}
		}
		if everyday != want.queues || all != want.all {
			t.Errorf("%s: %d queues for everyday use and %d in all, want %d and %d", l.Name, everyday, all, want.queues, want.all)
		}
		for now := range int64(3_000_000) {
			if p, _ := placeFor(l, now*37, now*37+want.reach.Milliseconds(), true); p.ring >= l.Everyday {
				t.Fatalf("%s: at %d %v take ring %d, which is not for everyday use", l.Name, now*37, want.reach, p.ring)
			}
		}
	}
	if name := wheel.Standard.Queue(0, 7); name != "v1.250ms.07" {
		t.Errorf("name = %q", name)
	}
	if name := wheel.Few.Queue(3, 5); name != "v1few.864s.05" {
		t.Errorf("name = %q", name)
	}
}
