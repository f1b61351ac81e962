package cli

import (
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// The error of a wrong command line helps to put it right.
func TestUsage(t *testing.T) {
	s := memory.New()
	url := share(t, s)
	ok(t, s.Set(t.Context(), "history:a", storage.State{Data: []byte(`{"v":1}`), Until: decision.Never}, storage.NoRevision))
	unknown := write(t, "unknown.json", `{"size": 5, "rte": 3}`)
	broken := write(t, "broken.json", "{\n  \"size\": 5,\n  rate: 3\n}\n")
	for _, c := range []struct{ line, want string }{
		{"", "drip looks into the storages"},
		{"inspct", `drip: there is no command "inspct"; drip help lists those there are`},
		{"inspect", "drip inspect: URL is missing; it is: drip inspect URL ENTITY"},
		{"limits", `drip: there is no command "limits"; drip help limits describes them`},
		{"urls", `drip: there is no command "urls"; drip help urls describes them`},
		{"inspect URL", "drip inspect: ENTITY is missing; it is: drip inspect URL ENTITY"},
		{"inspect URL a b", "drip inspect: there are too many arguments; it is: drip inspect URL ENTITY"},
		{"version 1", "drip version: there are too many arguments; it is: drip version\n"},
		{"serve URL --listen 7117", "drip serve: --listen: listen tcp: address 7117: missing port in address\nIt takes an address and a port, such as 127.0.0.1:7117."},
		{"inspect shop-1 URL", "drip inspect: storage: open: the URL has no scheme"},
		{"inspect 127.0.0.1:6379 a", "drip inspect: storage: open: malformed URL\ndrip help urls says how they look."},
		{"inspect mysql://host/db a", `storage: open: unknown scheme "mysql" (there are: `},
		{"inspect env:DRIP_TEST_NOT_SET a", "drip inspect: the environment variable DRIP_TEST_NOT_SET is not set"},
		{"inspect env: a", "drip inspect: the name of an environment variable is missing after env:"},
		{"inspect URL a --json=maybe", `drip inspect: invalid boolean value "maybe" for --json: it must be true or false`},
		{"inspect URL a --jsno", "drip inspect: there is no flag --jsno; drip help inspect lists the flags"},
		{"inspect URL a --limits", "drip inspect: a value is missing for --limits; drip help inspect"},
		{"inspect URL a --limits=", "drip inspect: --limits is empty"},
		{"dead requeue amqp://localhost orders --id=", "drip dead: --id is empty"}, // it is not all of them
		{"dead list amqp://localhost orders --all", "drip dead: list takes no --all and no --yes"},
		{"dead list amqp://localhost orders --yes", "drip dead: list takes no --all and no --yes"},
		{"dead requeue amqp://localhost orders --id x --rows 3", "drip dead: requeue takes no --rows"},
		{"dead list amqp://localhost orders --rows -1", "drip dead: --rows must be above 0"},
		{"dead", "drip dead: ACTION is missing; it is: drip dead ACTION AMQP-URL QUEUE"},
		{"dead amqp://localhost hunt", "drip dead: ACTION is missing; it is list or requeue"},
		{"dead list hunt", "drip dead: QUEUE is missing; it is: drip dead ACTION AMQP-URL QUEUE"},
		{"inspect URL a --timeout 5", `drip inspect: invalid value "5" for --timeout: "5" is not a duration such as 250ms, 1.5s or 24h`},
		{"inspect URL a --timeout 0s", `drip inspect: invalid value "0s" for --timeout: it must be above 0`},
		{"inspect URL history:a", `"history:a": no entity begins with "history:"`},
		{"pin URL history:a --concurrency 1", `"history:a": no entity begins with "history:"`},
		{"inspect URL shared:", `"shared:": no entity without a name after "shared:"`},
		{"pause URL shared: 1m", `"shared:": no entity without a name after "shared:"`},
		{"serve URL --queues orders", "drip serve: --broker and --queues belong together"},
		{"serve URL --broker amqp://localhost --queues a,,b", "drip serve: a name of --queues or --host is empty"},
		{"serve URL --host ,", "drip serve: a name of --queues or --host is empty"},
		{"serve URL --listen nowhere", "drip serve: --listen: listen tcp: address nowhere: missing port"},
		{"simulate testdata/sale.json --svg nowhere/x.svg", "drip simulate: --svg: open nowhere/x.svg: no such file"},
		{"inspect memory: a", "drip inspect: memory: is in the process that uses it"},
		{`inspect URL a --limits {"interval":5}`, `drip inspect: --limits: interval is 5; it must be a duration such as "250ms"`},
		{`inspect URL a --limits {"interval":[]}`, `drip inspect: --limits: interval is []; it must be a duration such as "250ms"`},
		{`inspect URL a --limits {"size":{}}`, "drip inspect: --limits: size is an object; it must be a whole number"},
		{`inspect URL a --limits {"align":5}`, `drip inspect: --limits: align is a number; it must be a string`},
		{"pin URL a --limit 5/1s --for 0s", "drip pin: invalid value \"0s\" for --for: it must be above 0"},
		{"pin URL a --limit 5/1s --for -1s", "drip pin: invalid value \"-1s\" for --for: it must be above 0"},
		{"pin URL a --limit 5/1s --burst -1", "drip pin: the burst is below 0"},
		{"pin URL a --limit 5/1s --burst 2", "drip pin: the burst is 2; it must be at least the number of the limit, 5"},
		{"pin URL a --concurrency 0", "drip pin: --concurrency must be above 0"},
		{"pin URL a --limit 0/1s", "drip pin: the limit must be above 0"},
		{"pin URL a --concurrency -1", "drip pin: the concurrency is below 0"},
		{`inspect URL a --limits {"size":"ten"}`, "drip inspect: --limits: size is a string; it must be a whole number"},
		{`inspect URL a --limits {"size":-3}`, "drip inspect: limits: size is -3; it must be at least 1"},
		{`inspect URL a --limits {"preset":"xero","size":3}`, "drip inspect: a preset gives the limits of an entity: leave out the preset, or limits of your own"},
		{`inspect URL a --limits {"preset":"shopify"}`, `drip inspect: provider: there is no preset "shopify"; there are "Shopify `},
		{`inspect URL a --limits {"preset":3}`, "drip inspect: --limits: preset is a number; it must be a string"},
		{`inspect URL a --limits {"windows":[{"size":3}]}`, "drip inspect: limits: windows[0].size and interval are required"},
		{`inspect URL a --limits {"shared":{"Size":{"size":-1}}}`, `drip inspect: limits: shared["Size"].size is -1`},
		{`inspect URL a --limits {"shared":{"a\"Size":{"rate":-1,"size":1}}}`, `drip inspect: limits: shared["a\"Size"].rate is -1`},
		{`inspect URL a --limits {"shared":{"app":{"size":-1}}}`, `drip inspect: limits: shared["app"]`},
		{`inspect URL a --limits {"travel":"-1s"}`, "drip inspect: travel is below 0"},
		{`inspect URL a --limits {"size":3,"travel":"1s"}`, "drip inspect: travel needs a preset"},
		{`inspect URL a --limits {"interval":"5"}`, `drip inspect: --limits: interval is "5"; it must be a duration such as "250ms"`},
		{`inspect URL a --limits {"size":`, "drip inspect: --limits: it ends too early"},
		{"inspect URL a --limits nowhere.json", "open nowhere.json: no such file"},
		{"inspect URL a --limits UNKNOWN", unknown + `: unknown field "rte"`},
		{"inspect URL a --limits BROKEN", broken + ":3: invalid character"},
		{"top URL --rows ten", `drip top: invalid value "ten" for --rows: it must be a whole number, not below 0; drip help top lists the flags`},
		{"simulate FILE --seed -1", `drip simulate: invalid value "-1" for --seed: it must be a whole number, not below 0; drip help`},
		{"top URL --rows 0", "drip top: --rows and --every must be above 0"},
		{"pause URL a soon", `drip pause: DURATION must be a number above 0 with its unit, such as 30s`},
		{"pause URL a 10", "drip pause: DURATION must be a number above 0 with its unit, such as 30s"},
		{"pause URL a -5m", `drip pause: DURATION must be a number above 0 with its unit, such as 30s`},
		{"pause --yes -5m --all URL -x", "drip pause: there is no flag --x"},
		{"pause URL a 0s", "drip pause: DURATION must be a number above 0 with its unit"},
		{"completion csh", `drip completion: there is nothing for "csh"; there is for bash, zsh and fish`},
		{"help nonsense", `drip help: there is nothing about "nonsense"`},
		{"queues localhost orders", "drip queues: AMQP-URL is not an AMQP URL such as amqp://"},
	} {
		args := strings.Fields(c.line)
		for i := range args { // a temporary folder may have a space in its name
			args[i] = strings.NewReplacer("URL", url, "UNKNOWN", unknown, "BROKEN", broken).Replace(args[i])
		}
		o := try(t, args...)
		if o.status != statusUsage || !strings.Contains(o.err, c.want) || o.out != "" {
			t.Errorf("drip %s: status %d, %q\nwant %q", c.line, o.status, o.err+o.out, c.want)
		}
	}
}

func TestFlagsMayStandAnywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		url := share(t, memory.New())
		want := must(t, "inspect", `--limits={"size":7}`, "--json", url, "shop-1")
		for _, line := range []string{
			`inspect URL --limits {"size":7} shop-1 --json`, `inspect -json URL shop-1 -limits {"size":7}`, `inspect --json --limits {"size":7} -- URL shop-1`,
		} {
			if got := must(t, strings.Fields(strings.ReplaceAll(line, "URL", url))...); got != want {
				t.Errorf("%s:\n%s\nwant:\n%s", line, got, want)
			}
		}
		if got := must(t, "inspect", url, "--", "--json"); !strings.HasPrefix(got, "--json at ") {
			t.Errorf("the entity --json:\n%s", got)
		}
	})
}

func TestHelp(t *testing.T) {
	texts := []string{must(t, "help"), must(t, "help", "urls"), must(t, "help", "limits"), must(t, "help", "presets")}
	for _, d := range directory() {
		got := must(t, "help", d.name)
		texts = append(texts, got)
		if asked := must(t, d.name, "--help"); asked != got {
			t.Errorf("drip %s --help is not drip help %[1]s:\n%s", d.name, asked)
		}
		if !strings.Contains(texts[0], "\n  "+d.name+" ") {
			t.Errorf("drip help does not list %s", d.name)
		}
	}
	for _, text := range texts {
		narrow(t, text)
	}
	if got := must(t, "--version"); !strings.HasPrefix(got, "drip ") {
		t.Errorf("drip --version: %q", got)
	}
}

// full is an output on a disk without space.
type full struct{}

func (full) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
}

// An output that cannot be written is a failure, and no server that did not answer.
func TestFullDisk(t *testing.T) {
	url := share(t, memory.New())
	for _, line := range []string{"help", "version", "top URL --json", "inspect URL shop", "pause URL 1m --all --yes", "pause URL shop 1m"} {
		var err strings.Builder
		if got := run(t.Context(), &terminal{out: full{}, err: &err, zone: time.UTC}, strings.Fields(strings.ReplaceAll(line, "URL", url))); got != statusFailure {
			t.Errorf("drip %s: status %d, want %d\n%s", line, got, statusFailure, &err)
		}
	}
}
