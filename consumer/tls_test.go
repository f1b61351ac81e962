package consumer

import (
	"context"
	"crypto/tls"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/buckettest"
	"github.com/drip-go/drip/internal/servers"
)

// A Consumer trusts the certificates of Options.TLS, or of the URL. Run ends at once if it does not trust the broker's.
func TestTLS(t *testing.T) {
	t.Parallel()
	b := connect(t, useBroker(t))
	u, err := url.Parse(b.url)
	b.must(err)
	front := servers.FrontTLS(t, u.Host, nil)
	u.Scheme, u.Host = "amqps", front.Addr
	bucket := buckettest.New(t, drip.Options{})
	options := func(queue string) Options {
		return Options{URL: u.String(), Queue: queue, Limiter: bucket, Entity: oneShop}
	}
	for name, change := range map[string]func(*Options){
		"Options.TLS": func(o *Options) { o.TLS = front.Trusts },
		"URL":         func(o *Options) { o.URL += "?cacertfile=" + url.QueryEscape(front.CAFile) },
	} {
		t.Run(name, func(t *testing.T) {
			var l ledger
			o := options(b.queue())
			o.Handler = &l
			change(&o)
			stop := running(t, o)
			b.publish(o.Queue, numbered(0, 3)...)
			eventually(t, "all are handled", func() bool { return l.count() == 3 })
			stop()
		})
	}
	err = made(t, options(b.queue())).Run(context.Background())
	if !errors.As(err, new(*tls.CertificateVerificationError)) || strings.Contains(err.Error(), u.User.String()) {
		t.Errorf("Run = %v, want the certificate's error", err)
	}
}
