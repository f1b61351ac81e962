package entities

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage/memory"
)

// The stored limits tell of a calendar what the owners' limits tell, also days after the last decision of an owner, and
// after a change by hand.
func TestReportOfACalendar(t *testing.T) {
	berlin, err := time.LoadLocation("Europe/Berlin")
	ok(t, err)
	elsewhere := map[string]drip.Alignment{"daily": drip.Daily(nil), "weekly": drip.Monthly(berlin), "monthly": drip.Monthly(nil)}
	for name, align := range map[string]drip.Alignment{"daily": drip.Daily(berlin), "weekly": drip.Weekly(berlin), "monthly": drip.Monthly(berlin)} {
		synctest.Test(t, func(t *testing.T) {
			s := memory.New()
			o := drip.Options{Size: 20, RefreshRate: 20, Windows: []drip.Window{{Size: 3, Align: align}}, Storage: s, Start: time.UnixMilli(0)}
			b := buckettest.New(t, o)
			stored, err := NewJudge(nil, s)
			ok(t, err)
			given, err := NewJudge(&o, s)
			ok(t, err)
			other := o
			other.Windows = []drip.Window{{Size: 3, Align: elsewhere[name]}}
			moved, err := NewJudge(&other, s)
			ok(t, err)
			for hour := range 40 * 24 {
				if hour == 4 || hour == 42 {
					for range 5 { // two of them wait for the next interval
						buckettest.Admit(t, b, "shop", drip.Request{})
					}
				}
				if hour == 200 {
					subject, err := Open(t.Context(), s, "shop")
					ok(t, err)
					if done, err := subject.Reset(t.Context()); !done || err != nil {
						t.Fatal(done, err)
					}
				}
				e, err := Read(t.Context(), s, "shop")
				ok(t, err)
				want := buckettest.Inspect(t, b, "shop")
				r, err := stored.Report(t.Context(), e)
				// A month may have another length than the last one that is stored.
				if err != nil || name != "monthly" && (r.Delay != want.Delay || r.Bound != want.Bound) {
					t.Fatalf("%s at %v: the stored limits tell %v, %v, %v; the owners' %v, %v", name, e.Time, r.Delay, r.Bound, err, want.Delay, want.Bound)
				}
				if r, err = given.Report(t.Context(), e); err != nil || r.Changed {
					t.Fatalf("%s at %v: the limits count as changed: %v, %v", name, e.Time, r.Windows, err)
				}
				if r, err = moved.Report(t.Context(), e); err != nil || r.Changed != r.Known {
					t.Fatalf("%s at %v: the limits of another calendar do not count as changed: %v, %v", name, e.Time, r.Windows, err)
				}
				time.Sleep(time.Hour)
			}
		})
	}
}

// Limits that have not changed do not count as changed while the level rises that was in force at the last decision.
func TestReportAfterALevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		o := drip.Options{Size: 11, RefreshRate: 11, Follow: true, Storage: s}
		b := buckettest.New(t, o)
		j, err := NewJudge(&o, s)
		ok(t, err)
		ok(t, b.Throttled(t.Context(), "shop", time.Second))
		buckettest.Admit(t, b, "shop", drip.Request{})
		for range 70 {
			e, err := Read(t.Context(), s, "shop")
			ok(t, err)
			if r, err := j.Report(t.Context(), e); err != nil || r.Changed {
				t.Fatalf("at a level of %v, then %v, the limits count as changed: %v, %v", e.State.Level(), r.Level, r.Windows, err)
			}
			time.Sleep(time.Minute)
		}
	})
}

// A Judge that is asked often tells of a shared limit what a newcomer is told now, although it does not read the limit for each entity.
func TestReportWithinABusyLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memory.New()
		o := drip.Options{Size: 1000, Storage: s, Start: time.UnixMilli(0), Shared: map[string]drip.Limit{"app": {Size: 4, RefreshRate: 1, RefreshInterval: 100 * time.Millisecond}}}
		b := buckettest.New(t, o)
		j, err := NewJudge(&o, s)
		ok(t, err)
		for range 300 {
			buckettest.Admit(t, b, "one", drip.Request{})
			time.Sleep(60 * time.Millisecond)
			e, err := Read(t.Context(), s, "two")
			ok(t, err)
			want := buckettest.Inspect(t, b, "two")
			if r, err := j.Report(t.Context(), e); err != nil || r.Delay != want.Delay || r.Bound != want.Bound {
				t.Fatalf("the report tells %v, %v, %v; a newcomer is told %v, %v", r.Delay, r.Bound, err, want.Delay, want.Bound)
			}
		}
	})
}
