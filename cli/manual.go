package cli

import (
	"context"
	"fmt"
	"runtime/debug"
)

const overviewHelp = `
drip help COMMAND says more of one, drip help urls and drip help limits of what most of them take.

Exit statuses:
  0    it is done
  1    it failed
  2    the command line, or a file that it names, makes no sense
  3    the server gave no answer, or none in time
  4    the answer is no: reset was not confirmed, or simulate --check found a call over the limit or a
       message left
  130  it was interrupted
`

// topics are what help knows besides the commands.
var topics = map[string]string{
	"urls": `A URL names the storage that the consumers use, with the parameters they use:

  redis://user:password@host:6379/0?prefix=drip:    rediss: for TLS
  postgres://user:password@host:5432/database?schema=drip

A Redis Cluster cannot be named by a URL. AMQP-URL names a RabbitMQ: amqp://user:password@host:5672/vhost, amqps: for TLS.

Characters such as @ and / in a password have to be escaped: %40, %2F. What is on a command line can be seen in the list
of processes. So instead of a URL there may be the name of an environment variable that holds it, as env:REDIS_URL. No
output or error of drip repeats a URL or a password.
`,
	"limits": `--limits tells what the consumers allow an entity, in JSON or in a file of JSON. It says the same as drip.Options in
their code; what is left out is the default of drip.Options.

  {
    "size": 38, "rate": 1, "interval": "500ms",
    "windows": [{"size": 95, "rate": 95, "interval": "1m"}],
    "concurrency": 5,
    "wait_for_token": "50ms", "lease": "1m", "max_lease": "1h"
  }

windows are those after the first; a rate that is left out is the size.

The storage holds the limits of each entity as of its last decision. inspect,
top and serve take these only to show what other limits would say.
`,
}

const inspectHelp = `It tells what is left of each limit, which tokens are out and for how long, and until when slots are booked or the entity
is closed. It changes nothing and asks the storage once.

It tells when a newcomer would run, and what keeps it from running now, by the
limits of the last decision. A shared limit may keep it longer.

  drip inspect redis://localhost:6379/0 shop-1
  drip inspect env:REDIS_URL shop-1 --limits '{"size": 38, "rate": 1, "interval": "500ms"}'
`

const topHelp = `Busiest are the entities with most operations in flight, then those that were decided about last. Longest waiting are
those whose last booked slot is furthest away. On a terminal the picture is refreshed until Ctrl-C; in a pipe it is one
snapshot.

A snapshot reads all that is stored, in steps of a thousand entities that hold up no decision. If that takes longer
than --timeout it shows what was read, and says so. The pause between two is at least four times what one takes.

  in use    tokens that are out
  decided   how long ago the last decision was
  takes     how long operations take, on average
  booked    units that are promised and have not run
  waiting   until the last booked slot
  closed    until a pause, or what the provider has asked for, is over
  capacity  what is left of each window
  next      when a newcomer would run, and because of what not now

booked, capacity and next are by the limits of the last decision, or by --limits.
`

const serveHelp = `The page shows the entities by backlog, by when the last one runs, by use and by closing, with a search; of one entity
what binds it and until when, what is left, who holds its tokens; and, with --broker, the queues and their dead letters.

It is reached on this machine only, unless --listen says otherwise, and changes nothing, unless --write is given. There is
no login: put a proxy with one in front of it, or mount package page in a program of your own.

  drip serve env:REDIS_URL
  drip serve env:REDIS_URL --broker env:AMQP_URL --queues orders,invoices --write
`

const deadHelp = `ACTION is list or requeue. List shows the first dead letters, with an ID and the reason of each. Requeue puts them back
to be handled, as they were published: one with --id, those with one reason with --reason, or all with --all. It asks
for confirmation on a terminal, and needs --yes elsewhere, but for --id.

  drip dead list env:AMQP_URL orders
  drip dead requeue env:AMQP_URL orders --reason "too old"

The broker marks what was listed as redelivered. A letter in a quorum queue that was listed often moves to its end.
`

const pauseHelp = `Nothing of the entity runs in any process until the time is over, or until drip resume. What is in flight goes on. What
is closed for longer already stays so. Nothing that is known of the entity is lost.

  drip pause redis://localhost:6379/0 shop-1 10m
  drip pause redis://localhost:6379/0 eu- 10m --prefix
  drip pause redis://localhost:6379/0 10m --all

With --prefix and --all those are meant that are stored now. One that is idle, and so not stored, is not paused. It asks for
confirmation then, or needs --yes.
`

const pinHelp = `The limit holds besides those of the consumers, in all processes, from their
next decision on, and survives their restart. It takes the place of the pin
before. What has run and who waits is not forgotten. An operation that costs
more than the limit waits until the pin has ended.

  drip pin env:REDIS_URL shop-1 --limit 5/1s --for 2h
  drip pin env:REDIS_URL eu- --concurrency 2 --prefix
  drip pin env:REDIS_URL shared:app --limit 100/1m

It never lets more run than the consumers allow. With --raise it may: it takes
the place of their concurrency and lifts their window with the same interval.
Their other windows still hold.

With --prefix and --all those are meant that are stored now. It asks for
confirmation then, or needs --yes.
`

const resumeHelp = `Of an entity that the provider has throttled this ends its time, too. The entity gains capacity as if it had been open
since its last decision.
`

const resetHelp = `Use it when those who hold the tokens are known to be gone. All tokens and leases are back, all tickets forgotten, and the
entity is open; messages that come back with a forgotten ticket are newcomers. What has run stays counted.

It asks for confirmation on a terminal, and needs --yes elsewhere.
`

const queuesHelp = `It asks RabbitMQ for the work queue, for what is due, for the dead letters and for the delay queues, by names: those
"QUEUE.drip.due.v1.…" of a Consumer, "QUEUE.drip.v1.…" of DelayQueues in a consume loop of your own, and with "v1few" those
of either with FewQueues. Nothing is declared and no message is touched.

All messages of a delay queue leave it together, at a time that follows from its name and this machine's clock. But for the
queues of the shortest time that is a little before they are due, and they are put into a finer one.
`

const simulateHelp = `It prints what would come of them: for drip with tickets (admit), for the classic delays, for a limiter that says "retry
after", and for an optimum that knows the future. FILE is JSON, - for the input:

` + scenarioExample + `
limits are those of drip help limits. Only arrivals are required. All durations are texts such as "1.5s".

providers count the calls of each entity, and find those that are over the limit:
  leaky-bucket, token-bucket                          size, per_second
  fixed-window, first-call-window, sliding-window     size, interval
  concurrency                                         size

entities is how many there are, each with its own load. arrivals are of several kinds at once:
  burst            count messages at the time "at"
  steady, poisson  per_second, from, to: at equal or at random distances
  trace            file: CSV, of which each line is a message: a time and, if there are several, its entity. A time is
                   2026-01-31T12:00:00Z, or seconds since 1970 or since the beginning, or 1m30s since the beginning.
                   A file with dates begins at midnight (UTC) of its first day

operation is how long the provider takes, late by how much a message misses its time. Each is a duration, or
  {"kind": "exponential", "mean": "1s", "at_most": "20s"}
  {"kind": "log-normal", "median": "1s", "sigma": 1.5, "at_most": "20s"}

cost is a number, or {"from": 1, "to": 10, "off": 3}: an estimate, and by how much the real cost may be off.
travel is the most time that a request is on its way. Package simulate can do more: crashes, outages, limits that change.
`

const scenarioExample = `  {
    "name": "plus",
    "about": "a leaky bucket of 40 that drains by 2 a second; a backlog of 100 and a load of 60 %",
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
