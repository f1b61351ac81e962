package storage_test

import (
	"context"
	"errors"
	"math"
	"net/url"
	"strings"
	"testing"

	"github.com/drip-go/drip/storage"
)

func init() {
	storage.Register("Test-Scheme", func(_ context.Context, u *url.URL) (storage.Storage, error) {
		if u.Host == "" {
			return nil, errors.New("no host")
		}
		return nil, nil
	})
}

func TestOpen(t *testing.T) {
	for _, c := range []struct{ url, want string }{
		{"test-scheme://host", ""},
		{"TEST-SCHEME://host", ""},
		{"test-scheme:", "storage: open test-scheme: no host"},
		{"nothing://user:secret@host", `storage: open: unknown scheme "nothing" (forgotten import? there are: test-scheme)`},
		{"", "storage: open: the URL has no scheme (there are: test-scheme)"},
		{"host:secret@/\x7f", "storage: open: malformed URL"},
		{"test-scheme://user:12/secret@host", "storage: open: malformed URL"},
		{"test-scheme://user:secret@host:port", "storage: open: malformed URL"},
	} {
		_, err := storage.Open(t.Context(), c.url)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("Open(%q) = %q, want %q", c.url, got, c.want)
		}
	}
}

func TestRegisterPanics(t *testing.T) {
	open := func(context.Context, *url.URL) (storage.Storage, error) { return nil, nil }
	for name, register := range map[string]func(){
		"empty":     func() { storage.Register("", open) },
		"nil":       func() { storage.Register("other", nil) },
		"duplicate": func() { storage.Register("TEST-scheme", open) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: Register did not panic", name)
				}
			}()
			register()
		}()
	}
}

func TestLimitsValidate(t *testing.T) {
	good := storage.Limits{Window: storage.Window{Size: 1, RefreshRate: 1, RefreshInterval: 1}, WaitForToken: 1}
	if err := good.Validate(); err != nil {
		t.Errorf("Validate(%+v) = %v", good, err)
	}
	for name, spoil := range map[string]func(*storage.Limits){
		"Size":            func(l *storage.Limits) { l.Size = 0 },
		"RefreshRate":     func(l *storage.Limits) { l.RefreshRate = -1 },
		"RefreshInterval": func(l *storage.Limits) { l.RefreshInterval = 0 },
		"WaitForToken":    func(l *storage.Limits) { l.WaitForToken = math.MinInt64 },
		"Windows[1].Size": func(l *storage.Limits) { l.Windows = []storage.Window{l.Window, {}} },
		"Concurrency":     func(l *storage.Limits) { l.Concurrency = -1 },
		"Lease":           func(l *storage.Limits) { l.Lease = -1 },
	} {
		l := good
		spoil(&l)
		if err := l.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Validate(%+v) = %v, want an error that names %s", l, err, name)
		}
	}
}

func FuzzStateEncoding(f *testing.F) {
	f.Add([]byte{1, 2, 4, 6, 8, 10, 12})
	f.Add([]byte{})
	f.Add([]byte{2, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		before := storage.State{InUse: 42}
		s := before
		if err := s.UnmarshalBinary(b); err != nil {
			if !s.Equal(before) {
				t.Fatalf("UnmarshalBinary failed and changed the state to %+v", s)
			}
			return
		}
		again, err := s.MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		var back storage.State
		if err := back.UnmarshalBinary(again); err != nil || !back.Equal(s) {
			t.Fatalf("%+v became %+v, %v", s, back, err)
		}
	})
}

func TestUndo(t *testing.T) {
	lease, ticket := storage.Lease{ID: 7, Cost: 2}, storage.Ticket{Slot: 9, Epoch: 1}
	for _, c := range []struct {
		op     storage.Op
		answer storage.Answer
		want   storage.Op
		needed bool
	}{
		{storage.Op{Kind: storage.GetDelay, Now: 5}, storage.Answer{}, storage.Op{Kind: storage.ReturnToken, Now: 5}, true},
		{storage.Op{Kind: storage.GetDelay, Now: 5}, storage.Answer{Delay: 1}, storage.Op{}, false},
		{storage.Op{Kind: storage.Admit, Now: 5}, storage.Answer{Lease: lease}, storage.Op{Kind: storage.Cancel, Now: 5, Lease: lease}, true},
		{storage.Op{Kind: storage.Admit, Now: 5}, storage.Answer{Delay: 1, Ticket: ticket}, storage.Op{Kind: storage.Cancel, Now: 5, Ticket: ticket}, true},
		{storage.Op{Kind: storage.Settle, Now: 5}, storage.Answer{Found: true}, storage.Op{}, false},
	} {
		if got, needed := c.op.Undo(&c.answer); got != c.want || needed != c.needed {
			t.Errorf("%+v with %+v: Undo = %+v, %t, want %+v, %t", c.op, c.answer, got, needed, c.want, c.needed)
		}
	}
}
