package cli

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/drip-go/drip/internal/columns"
	"github.com/drip-go/drip/provider"
)

const overviewHelp = `
drip help COMMAND says more of one command; drip help urls, drip help limits and
drip help presets say how a URL and --limits look, and which presets there are.

Exit statuses:
  0    done; or the user ended top or serve
  1    failed
  2    the command line, or a file that it names, is invalid; or a command that
       asks has no terminal and no --yes
  3    the server did not answer, or not in time
  4    the answer is no: a question was not confirmed, or simulate --check found
       a call over the limit or a message left
  130  interrupted
`

// topics are what help knows besides the commands.
var topics = map[string]func() string{
	"limits":  func() string { return limitsHelp },
	"presets": presetsHelp,
	"urls":    func() string { return urlsHelp },
}

// presetsHelp lists the presets of package provider, with their rules.
func presetsHelp() string {
	var b strings.Builder
	b.WriteString(presetsIntroduction)
	for _, p := range provider.Presets() {
		fmt.Fprintf(&b, "  %s\n", p.Name)
		write := func(name string, rules []provider.Rule) {
			var texts []string
			for _, r := range rules {
				texts = append(texts, r.String())
			}
			for _, line := range columns.Lines(name+strings.Join(texts, ", "), 80-6) {
				fmt.Fprintf(&b, "      %s\n", line)
			}
		}
		write("each "+p.Entity+": ", p.Rules)
		for _, name := range slices.Sorted(maps.Keys(p.Shared)) {
			write("all together, by the limit "+name+": ", p.Shared[name])
		}
	}
	return b.String()
}

const presetsIntroduction = `drip simulate and --limits take the name of a preset, in the field "preset".
Case, blanks and punctuation do not matter: "shopify-rest-admin".

`

const urlsHelp = `A URL names the storage that the consumers use, with their parameters:

  redis://user:password@host:6379/0?prefix=drip:
  rediss://…                                          the same over TLS
  postgres://user:password@host:5432/database?schema=drip

A URL cannot name a Redis Cluster. AMQP-URL names a RabbitMQ:

  amqp://user:password@host:5672/vhost
  amqps://…                                           the same over TLS

Escape characters such as @ and / in a password: %40, %2F. Other users of this
machine can see a command line in the list of processes. To avoid that, name an
environment variable that holds the URL: env:REDIS_URL. No output and no error
of drip repeats a URL or a password: as ENTITY it refuses a URL with a password.
`

const limitsHelp = `--limits tells what the consumers allow an entity: JSON, or a file of it. It has
the fields of drip.Options; one that is left out has the default there.

  {
    "size": 38, "rate": 1, "interval": "500ms",
    "windows": [{"size": 95, "rate": 95, "interval": "1m"}],
    "concurrency": 5,
    "wait_for_token": "50ms", "lease": "1m", "max_lease": "1h"
  }

windows are the windows after the first; rate defaults to size. A window of
"unit": "tokens" counts tokens instead of calls. A window with "align" follows
a calendar instead of an interval: "daily Europe/Berlin", "weekly", "monthly".
"align": "entity" or "2026-01-31T12:00:00Z" moves the intervals.

Instead of them, preset names an API; drip help presets lists them. travel is
the most time that a request to it is on its way. shared has limits of all
entities together, by name. With it, inspect reads those limits, too:

  {"preset": "airtable", "travel": "50ms"}
  {"size": 38, "shared": {"app": {"size": 50, "rate": 50, "interval": "1s"}}}

The storage holds the limits of each entity as of its last decision. inspect,
top and serve need --limits only for other limits, for shared limits, and for an
entity that is not stored.
`

const inspectHelp = `It prints the remaining capacity of each limit, the age of the tokens in use,
the end of the last reserved (booked) slot and of a closing. It changes nothing
and asks the storage twice: for the entity, and for its use of the last hour.

It prints when a newcomer, a message without a ticket, runs, and why not now. It
uses the limits of the last decision. A shared limit may delay the newcomer
longer; --limits with "shared" includes it.

  drip inspect redis://localhost:6379/0 shop-1
  drip inspect env:REDIS_URL shop-1 --limits '{"size": 9, "rate": 5}'
  drip inspect env:REDIS_URL shared:app        the limit app that entities share
`

const topHelp = `Busiest are the entities with most operations in flight, then those with the
latest decision. Longest waiting are the entities with the latest reserved slot.
On a terminal top refreshes the picture until Ctrl-C; in a pipe it prints one
snapshot.

A snapshot reads all that is stored, in steps of a thousand entities that delay
no decision. After --timeout it shows the part that it has read, and says so.
The pause between two snapshots is at least four times the time that one takes.
On a terminal top cuts long lines; in a pipe it cuts only names.

  in use    tokens in use
  decided   time since the last decision
  booked    reserved units that have not run; units that wait for a shared limit
            count in the row of that limit
  waiting   time until the last reserved slot
  closed    time until a pause, or the provider's retry-after, ends
  capacity  the remaining capacity of each window
  next      when a message without a ticket runs
  why not   why it does not run now; "app: window 1" is a shared limit with this
            name; "shared limits aside" means that a shared limit may still
            delay it: see its own row, or include it with --limits

A column without a value is left out, and long names are cut. booked, capacity
and next go by the limits of the last decision, or by --limits. "-" stands for
no limit, and 12k for 12,000 or a little more.
`

const serveHelp = `The page lists the entities by backlog, by the time at which their last message
runs, by use and by closing, with a search. Of one entity it shows what binds
it and until when, what is left, and who holds its tokens. With --broker it
shows the queues and their dead letters.

Only this machine reaches the page, unless --listen says otherwise. The page
changes nothing, unless --write is given. It has no login: put a proxy with one
in front of it, or mount package page in a program of your own.

  drip serve env:REDIS_URL
  drip serve env:REDIS_URL --broker env:AMQP_URL --queues orders --write
`

const deadHelp = `ACTION is list or requeue. list prints the first dead letters, with an ID and
the reason of each. On a terminal it cuts long errors; in a pipe it prints them
whole. requeue puts dead letters back to be handled, as they were published: one
with --id, those with one reason with --reason, or all with --all. Unless --id
is given it asks for confirmation on a terminal, and needs --yes elsewhere.
--id and --reason also select what list prints, of the letters that it looks at.
The age of a letter is the time from its first delivery until it was given up.

  drip dead list env:AMQP_URL orders
  drip dead requeue env:AMQP_URL orders --reason "too old"

The broker marks listed letters as redelivered. A letter in a quorum queue that
was listed often moves to the end of the queue.
`

const pauseHelp = `Nothing of the entity runs in any process until the time is over, or until drip
resume. Operations in flight go on. A pause never shortens a longer closing.
Nothing that is known of the entity is lost.

Messages that are postponed meanwhile come back at the end of the pause or
later, also if you resume the entity before. So pause for a short time, and
again before it ends.

  drip pause redis://localhost:6379/0 shop-1 10m
  drip pause redis://localhost:6379/0 eu- 10m --prefix
  drip pause redis://localhost:6379/0 10m --all

--prefix and --all pause the entities that are stored now. An idle entity is not
stored, and so not paused. With either flag drip asks for confirmation, or needs
--yes.
`

const pinHelp = `The limit holds besides the limits of the consumers, in all processes, from
their next decision on. It survives their restart, and takes the place of an
earlier pin. drip forgets neither what has run nor who waits. An operation that
costs more than the limit waits until the pin has ended.

  drip pin env:REDIS_URL shop-1 --limit 5/1s --for 2h
  drip pin env:REDIS_URL eu- --concurrency 2 --prefix
  drip pin env:REDIS_URL shared:app --limit 100/1m

A pin never lets more run than the consumers allow. With --raise it may: it
takes the place of their concurrency and lifts their window with the same
interval. Their other windows still hold.

--prefix and --all pin the entities that are stored now. With either flag drip
asks for confirmation, or needs --yes.
`

const resumeHelp = `It also ends a closing that the provider asked for. A window that gathers
capacity gains none for the time that the entity was closed.

New messages run as the limit has room. Messages that were postponed until the
end of the closing come back then: no resume takes them out of their queue.
`

const resetHelp = `Use it when the holders of the tokens are known to be gone. All tokens and
leases are back, all tickets are forgotten, and a pause ends. A message that
comes back with a forgotten ticket is a newcomer. Past operations stay counted.

It asks for confirmation on a terminal, and needs --yes elsewhere.
`

const queuesHelp = `It asks RabbitMQ for the work queue, for what is due, for the dead letters, and
for the delay queues by their names: "QUEUE.drip.due.v1.…" of a Consumer,
"QUEUE.drip.v1.…" of DelayQueues in a consume loop of your own, and with
"v1few" the names of either with FewQueues. It declares nothing and touches no
message.

All messages of a delay queue leave it together, at a time that follows from
its name and this machine's clock. Messages leave the queues of longer times a
little before they are due, for a queue of a shorter time.
`

const simulateHelp = `It plays the load for drip with tickets (admit), for the classic delays, for a
limiter that tells all it refuses when to come back (retry-after), and for an
optimum that knows the future. FILE is JSON, - for the input:

` + scenarioExample + `
limits are the limits of each entity; drip help limits describes them. shared
and travel stand beside limits, preset stands in their place. The rules of a
preset count the calls:

  {
    "preset": "shopify rest admin", "travel": "50ms",
    "shared": {"app": {"size": 50, "rate": 50, "interval": "1s"}},
    "entities": 30, "arrivals": [{"kind": "burst", "count": 100}]
  }

With shared limits there are admit and an optimum only. That optimum treats
messages as a liquid, so in a short run admit may be faster than it.

Only arrivals are required. All durations are texts such as "1.5s".

providers count the calls of each entity, and find those over the limit:
  leaky-bucket, token-bucket                        size, per_second
  fixed-window, first-call-window, sliding-window   size, interval
  calendar                                          size, align
  concurrency                                       size
and a unit, if it is not calls. Without providers, a preset or shared limits
nothing counts the calls, so --check cannot find one that is over the limit.

begins is the date at which the time is 0, for windows with an align and for a
calendar: "begins": "2026-03-01T09:00:00+01:00". Without it the time is 0 at
midnight (UTC) of the first day of a trace with dates, or else of 2026-01-01.
An align of "entity" cannot be simulated.

entities is their number, each with a load of its own. arrivals are of several
kinds at once:
  burst            count messages at the time "at"
  steady, poisson  per_second, from, to: at equal or at random distances
  trace            file: CSV with a line for each message: its time and, if
                   there are several, its entity. A time is a date such as
                   2026-01-31T12:00:00Z, seconds since 1970 or since the
                   beginning, or 1m30s since the beginning

operation is the time that the provider takes; late is how late a postponed
message comes back. Each is a duration, or
  {"kind": "exponential", "mean": "1s", "at_most": "20s"}
  {"kind": "log-normal", "median": "1s", "sigma": 1.5, "at_most": "20s"}

cost is a number, or {"from": 1, "to": 10, "off": 3}: an estimate, and by how
much the real cost may be off. costs has the same for other units than calls. A
provider with a unit counts it:

  "preset": "Anthropic, tier 1"
  "costs": {"input tokens": 1500, "output tokens": {"from": 50, "to": 900}}

In the table and in JSON
  classic        GetDelay, which takes one call for each message; with costs or
                 other units it may be far over the limit
  retry-after    a bucket of the size that refills evenly; it may be over the
                 limit of a window, and so be faster than the optimum
  asked in hand  how often a consumer asked about a message that it held
  used           the part of the limit that the calls use; a burst may bring it
                 above 100 % in a short run
  makespan       the time from the first arrival until all messages are handled
  overtaken      messages that started after a later one of their entity
`

const scenarioExample = `  {
    "name": "plus",
    "about": "a leaky bucket of 40 that drains by 2 a second, a load of 60 %",
    "limits": {"size": 38, "rate": 1, "interval": "500ms"},
    "providers": [{"kind": "leaky-bucket", "size": 40, "per_second": 2}],
    "arrivals": [
      {"kind": "burst", "count": 100, "at": "10s"},
      {"kind": "poisson", "per_second": 1.2, "from": "0s", "to": "5m"}
    ],
    "operation": {"kind": "exponential", "mean": "200ms", "at_most": "20s"},
    "travel": "50ms"
  }
`

// version is "drip version".
type version struct{ noFlags }

func (version) run(_ context.Context, t *terminal, _ []string) error {
	v := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		v = info.Main.Version
	}
	_, err := fmt.Fprintln(t.out, "drip", v)
	return err
}
