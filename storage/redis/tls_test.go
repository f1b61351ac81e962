package redis_test

import (
	"crypto/x509"
	"errors"
	"io"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
)

// The client's certificates apply. Over rediss: the certificate of an unknown authority is an error, and nothing is sent.
func TestTLS(t *testing.T) {
	front := servers.FrontTLS(t, servers.OwnRedis(t).Addr(), nil)
	client := goredis.NewClient(&goredis.Options{Addr: front.Addr, TLSConfig: front.Trusts})
	t.Cleanup(func() { _ = client.Close() })
	op := decision.Op{Kind: decision.Admit, Now: decision.OwnClock, Cost: decision.Cost{1}}
	if a, err := newStorage(t, client).Do(t.Context(), "shop", &plenty, nil, op); err != nil || a.Delay != 0 {
		t.Errorf("Do = %+v, %v; want to run", a, err)
	}

	s, err := storage.Open(t.Context(), "rediss://drip:secret@"+front.Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer s.(io.Closer).Close()
	_, err = s.(storage.Atomic).Do(t.Context(), "shop", &plenty, nil, op)
	if !errors.As(err, new(x509.UnknownAuthorityError)) || strings.Contains(err.Error(), "secret") {
		t.Errorf("Do = %v, want the unknown authority", err)
	}
}
