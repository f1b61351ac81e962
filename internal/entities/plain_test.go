package entities

import (
	"testing"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// plain has Get and Set alone.
type plain struct{ storage.Storage }

// A storage of a user's own, with two methods, is read and changed like all others.
func TestPlainStorage(t *testing.T) {
	s := plain{memory.New()}
	b := buckettest.New(t, drip.Options{Size: 9, RefreshRate: 3, Storage: s})
	buckettest.Admit(t, b, "shop", drip.Request{})
	e, err := Open(t.Context(), s, "shop")
	if err != nil {
		t.Fatal(err)
	}
	if !e.Limits || len(e.Windows) != 1 || e.Windows[0].Size != 9 || e.InUse != 1 {
		t.Errorf("read %+v", e.Report)
	}
	if changed, err := e.Pin(t.Context(), drip.Pin{Concurrency: 2, For: time.Hour}); !changed || err != nil {
		t.Error(changed, err)
	}
	if changed, err := e.Pause(t.Context(), time.Minute); !changed || err != nil {
		t.Error(changed, err)
	}
	status, err := b.Inspect(t.Context(), "shop")
	if err != nil || status.Pin == nil || status.Concurrency != 2 || status.ClosedUntil.IsZero() {
		t.Errorf("%+v, %v; want it pinned and paused", status, err)
	}
}
