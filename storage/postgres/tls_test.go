package postgres_test

import (
	"crypto/x509"
	"errors"
	"io"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/postgres"
)

// The sslmode and sslrootcert of the URL apply. The certificate of an unknown authority is an error, and so is a server
// without TLS.
func TestTLS(t *testing.T) {
	server := servers.OwnPostgres(t) // without TLS and without a password
	config, err := pgx.ParseConfig(server.URL())
	ok(t, err)
	plain, err := url.Parse(server.URL())
	ok(t, err)
	front := servers.FrontTLS(t, plain.Host, servers.PostgresAsks)
	schema := newSchema()
	newStorageWith(t, newPool(t, server.URL(), 1), postgres.Options{Schema: schema})
	for _, test := range []struct {
		host, parameters string
		ok               bool
	}{
		{front.Addr, "sslmode=verify-full&sslrootcert=" + url.QueryEscape(front.CAFile), true},
		{front.Addr, "sslmode=verify-full", false},
		{plain.Host, "sslmode=require", false},
	} {
		u := url.URL{Scheme: "postgres", User: url.UserPassword(config.User, "secret"), Host: test.host, Path: "/" + config.Database, RawQuery: test.parameters + "&schema=" + url.QueryEscape(schema)}
		s, err := storage.Open(t.Context(), u.String())
		ok(t, err)
		defer s.(io.Closer).Close()
		_, err = ask(t.Context(), s.(storage.Atomic), "shop", limits(1, 1, 1000))
		switch {
		case test.ok && err != nil:
			t.Errorf("%s: %v", test.parameters, err)
		case !test.ok && (err == nil || strings.Contains(err.Error(), "secret")):
			t.Errorf("%s: %v, want an error without the password", test.parameters, err)
		case test.host == front.Addr && !test.ok && !errors.As(err, new(x509.UnknownAuthorityError)):
			t.Errorf("%s: %v, want the unknown authority", test.parameters, err)
		}
	}
}
