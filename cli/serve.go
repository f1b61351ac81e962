package cli

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/drip-go/drip/page"
)

// serve is "drip serve".
type serve struct {
	limits         limitsFlag
	listen, hosts  string
	write          bool
	broker, queues string
}

func (c *serve) flags(set *flag.FlagSet) {
	set.StringVar(&c.listen, "listen", "127.0.0.1:7117", "the `address` to listen at; with :7117 other machines reach the page, too")
	set.StringVar(&c.hosts, "host", "", "`names` under which the page is reached besides localhost and addresses, with commas in between")
	set.BoolVar(&c.write, "write", false, "let everybody who reaches the page pause, resume, reset, pin and requeue")
	set.StringVar(&c.broker, "broker", "", "the `AMQP-URL` of the broker whose queues are shown")
	set.StringVar(&c.queues, "queues", "", "the `names` of the work queues that are shown, with commas in between")
	c.limits.flags(set)
}

func (c *serve) run(ctx context.Context, t *terminal, args []string) error {
	l, err := c.limits.read(t)
	if err != nil {
		return err
	}
	if (c.broker == "") != (c.queues == "") {
		return usagef("--broker and --queues belong together")
	}
	queues, hosts := namesOf(c.queues), namesOf(c.hosts)
	if slices.Contains(queues, "") || slices.Contains(hosts, "") {
		return usagef("a name of --queues or --host is empty")
	}
	s, closing, err := open(ctx, args[0])
	if err != nil {
		return err
	}
	defer closing()
	secrets := append([]string{c.broker}, args...)
	o := page.Options{Storage: s, Limits: l, Log: slog.New(slog.NewTextHandler(careful{t.err, secrets}, nil))}
	if c.broker != "" {
		b, err := openBroker(c.broker, queues...)
		if err != nil {
			return err
		}
		defer b.Close()
		o.Broker = b
	}
	if c.write {
		o.Allow = func(r *http.Request, _ page.Action) (who string, allowed bool) { return "drip serve --write", true }
	}
	h, err := page.Handler(o)
	if err != nil {
		return err
	}
	defer h.Close()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.listen)
	if err != nil {
		return usagef("--listen: %w", err)
	}
	server := &http.Server{
		Handler:           onlyHosts(h, append(hosts, "localhost")),
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn),
	}
	defer server.Close()
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	what := "shows, and changes nothing"
	if c.write {
		what = "lets everybody who reaches it change things"
	}
	fmt.Fprintf(t.out, "The limits page is at http://%s/ and %s. Ctrl-C ends it.\n", reached(listener.Addr()), what)
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	// Requests that have begun may end.
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = server.Shutdown(ending) // else it is cut off
	return nil
}

// reached is an address that can be typed into a browser.
func reached(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok || !tcp.IP.IsUnspecified() {
		return a.String()
	}
	return fmt.Sprintf("localhost:%d", tcp.Port)
}

// namesOf returns the names of a list with commas in between, which may be empty.
func namesOf(list string) (names []string) {
	if list == "" {
		return nil
	}
	for name := range strings.SplitSeq(list, ",") {
		names = append(names, strings.TrimSpace(name))
	}
	return names
}

// onlyHosts refuses requests for other hosts than addresses and the names. A site that makes its own name lead to
// this machine could have its visitors' browsers read the page otherwise.
func onlyHosts(h http.Handler, names []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		is := func(name string) bool { return strings.EqualFold(host, name) }
		if net.ParseIP(strings.Trim(host, "[]")) == nil && !slices.ContainsFunc(names, is) {
			http.Error(w, "The page is not served under this name; drip serve --host allows names.", http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// careful writes a text without the passwords of these arguments.
type careful struct {
	to   io.Writer
	args []string
}

func (c careful) Write(text []byte) (int, error) {
	_, err := io.WriteString(c.to, withoutSecrets(string(text), c.args))
	return len(text), err
}
