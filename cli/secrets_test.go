package cli

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip/storage/memory"
)

// A URL with a short user, or an empty one, and an entity that looks like a URL leave the rest of an error readable.
func TestErrorsStayReadable(t *testing.T) {
	for _, arg := range []string{"redis://@localhost:1", "redis://u@localhost:1", "redis://:@localhost:1", "a:s@c"} {
		const text = "no answer: dial tcp 127.0.0.1:1: connection refused"
		if got := withoutSecrets(arg+": "+text, []string{"inspect", arg}); !strings.HasSuffix(got, ":…: "+text) {
			t.Errorf("with %q an error is %q", arg, got)
		}
	}
}

// pgx tells each address that it tried in a line of its own, after a tab.
func TestTabsStayReadable(t *testing.T) {
	o := try(t, "inspect", "postgres://postgres@127.0.0.1:1/x", "shop")
	if !strings.Contains(o.err, "\n  127.0.0.1:1 ") || strings.Contains(o.err, `\t`) {
		t.Errorf("the error is %s", o.err)
	}
}

// A user without a password is no secret: "postgres" is in many an error.
func TestUsersStayReadable(t *testing.T) {
	const text = "postgres: the URL or one of its parameters is wrong"
	if got := withoutSecrets(text, []string{"top", "postgres://postgres@localhost/shop?a?b"}); got != text {
		t.Errorf("an error is %q, want %q", got, text)
	}
	const url = "a server repeats postgres@localhost"
	if got := withoutSecrets(url, []string{"top", "postgres://postgres@localhost/shop"}); got != "a server repeats …localhost" {
		t.Errorf("an error is %q", got)
	}
}

// No error prints a password, wherever the URL stands.
func TestNoPasswordIsPrinted(t *testing.T) {
	const password, escaped = "s3cr/t@w0rd", "s3cr%2Ft%40w0rd"
	for i, url := range []string{
		"redis://user:" + escaped + "@127.0.0.1:1/0?max_retries=-1",
		"redis://user:" + password + "@127.0.0.1:1/0",
		"redis://user:" + escaped + "@127.0.0.1:1/zero",
		"redis://user:" + escaped + "@127.0.0.1:port",
		"rediss://:" + escaped + "@127.0.0.1:1?max_retries=-1",
		"redis:user:" + escaped + "@127.0.0.1",
		"postgres://user:" + escaped + "@127.0.0.1:1/db",
		"postgres://user:" + password + "@127.0.0.1:1/db",
		"postgres://user:" + escaped + "@127.0.0.1:port/db",
		"postgres://user:" + escaped + "@127.0.0.1:1/db?sslmode=odd",
		"mysql://user:" + escaped + "@127.0.0.1:1/db",
		"amqp://user:" + escaped + "@127.0.0.1:1/",
		"amqp://user:" + password + "@127.0.0.1:1/",
		"amqp://user:" + escaped + "@127.0.0.1:port/",
	} {
		variable := fmt.Sprint("DRIP_TEST_ADDRESS_", i)
		t.Setenv(variable, url)
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel() // nobody answers, which takes a while
			for _, line := range []string{
				"URL", "inspect URL", "inspect URL shop", "inspect shop URL", "inspect test:none URL", "inspect URL shop URL",
				"inspect URL shop --timeout URL", "inspect URL shop --timeout=URL", "inspect URL shop --limits URL", "inspect URL shop --limits={URL",
				"inspect env:NAME shop", "inspect URL shop --URL", "top URL", "top URL --once --json", "pause URL shop URL", "pause URL shop 1s",
				"resume URL shop", "reset URL shop", "reset URL shop --yes", "queues URL orders", "queues orders URL", "queues env:NAME orders",
				"dead list URL orders", "dead requeue URL orders --all --yes", "dead URL list orders", "serve URL --listen URL", "serve URL --broker URL --queues orders --listen=nowhere:port",
				"pause URL 1s --all --yes", "simulate URL", "completion URL", "help URL",
			} {
				args := strings.Fields(strings.NewReplacer("URL", url, "NAME", variable).Replace(line))
				o := try(t, args...)
				printed := o.out + o.err
				for _, secret := range []string{password, escaped, "s3cr", "w0rd"} {
					if strings.Contains(printed, secret) {
						t.Errorf("drip %s: status %d, and a password is printed:\n%s", strings.Join(args, " "), o.status, printed)
					}
				}
				if o.status == statusOK || printed == "" {
					t.Errorf("drip %s: status %d, %q", strings.Join(args, " "), o.status, printed)
				}
			}
		})
	}
}

// PostgreSQL takes a password in the query of a URL, too.
func TestNoPasswordOfAQueryIsPrinted(t *testing.T) {
	const url = "postgres://127.0.0.1:1/db?user=shop&password=s3cr%2Ft%40w0rd&sslpassword=s3cret"
	t.Setenv("DRIP_TEST_QUERY", url)
	for _, line := range []string{
		"URL", "help URL", "inspect URL", "inspect URL shop --limits URL", "inspect shop URL --timeout=URL", "simulate URL", "pause test:none shop URL",
		"top URL --timeout URL", "inspect env:DRIP_TEST_QUERY shop URL", "completion URL", "top URL --URL",
	} {
		got := try(t, strings.Fields(strings.ReplaceAll(line, "URL", url))...)
		if text := got.out + got.err; strings.Contains(text, "s3cr") {
			t.Errorf("drip %s prints %s", line, text)
		}
	}
}

// Errors quote their arguments.
func TestQuotedSecrets(t *testing.T) {
	for _, arg := range []string{`redis://user:pass\word12@host:1`, `redis://user:pass"word12@host:1`, "redis://user:pass\nword12@host:1"} {
		for _, args := range [][]string{{arg}, {"help", arg}, {"completion", arg}} {
			var out, err bytes.Buffer
			run(t.Context(), &terminal{in: strings.NewReader(""), out: &out, err: &err, zone: time.UTC}, args)
			if s := out.String() + err.String(); strings.Contains(s, "word12") {
				t.Errorf("%q: %s", args, s)
			}
		}
	}
}

// The state of an entity that is a URL would begin with its password.
func TestNoURLIsAnEntity(t *testing.T) {
	url := share(t, memory.New())
	for _, entity := range []string{"redis://u:topsecret@h", "redis://:topsecret@h:1/0", "redis://u:topsec/ret@h", "postgres://h/db?password=topsecret"} {
		for _, line := range []string{"inspect URL ENTITY", "inspect URL ENTITY --json", "pause URL ENTITY 1m", "resume URL ENTITY", "unpin URL ENTITY --prefix --yes"} {
			o := try(t, strings.Fields(strings.NewReplacer("URL", url, "ENTITY", entity).Replace(line))...)
			if o.status != statusUsage || strings.Contains(o.out+o.err, "topsec") || !strings.Contains(o.err, "ENTITY is a URL with a password") {
				t.Errorf("drip %s with %s: %+v", line, entity, o)
			}
		}
	}
	for _, entity := range []string{"https://shop.example", "https://shop.example/@user", "a:b@c"} {
		must(t, "inspect", url, entity)
	}
}
