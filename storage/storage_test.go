package storage_test

import (
	"context"
	"errors"
	"net/url"
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
		{"nothing://user:secret@host", `storage: open: unknown scheme "nothing" (forgotten import? there are: memory, test-scheme)`},
		{"", "storage: open: the URL has no scheme (there are: memory, test-scheme)"},
		{"host:secret@/\x7f", "storage: open: malformed URL"},
		{"test-scheme://user:12/secret@host", "storage: open: malformed URL"},
		{"test-scheme://host?prefix=%zzsecret", "storage: open: malformed URL"},
		{"test-scheme://host?prefix=a;b=secret", "storage: open: malformed URL"},
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
