package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/servers"
	"github.com/drip-go/drip/queues"
)

// reading is a broker whose queue has one dead letter, or more.
type reading struct {
	queues.Broker
	letter queues.Letter
	more   bool
}

func (r reading) Dead(context.Context, string, int) ([]queues.Letter, bool, error) {
	return []queues.Letter{r.letter}, r.more, nil
}

// A list of some dead letters does not deny the others.
func TestDeadOfOtherReasons(t *testing.T) {
	for more, want := range map[bool]string{
		false: "No dead letter has that ID or reason.\n",
		true:  "None of the first 20 dead letters has that ID or reason; --rows looks at more.\n",
	} {
		var out strings.Builder
		c := &dead{reason: "too old", rows: 20}
		if err := c.list(t.Context(), &terminal{out: &out}, reading{letter: queues.Letter{Reason: "failed"}, more: more}, "orders"); err != nil || out.String() != want {
			t.Errorf("it says %q (%v), want %q", out.String(), err, want)
		}
	}
}

// slowly is a broker that takes a second for each of some dead letters, and then does not answer, or is done.
type slowly struct {
	queues.Broker
	letters int
	hangs   bool
}

func (s slowly) Requeue(ctx context.Context, _ string, pick func(*queues.Letter) bool) (n int, err error) {
	for range s.letters {
		time.Sleep(time.Second)
		pick(new(queues.Letter))
	}
	if s.hangs {
		<-ctx.Done()
	}
	return s.letters, ctx.Err()
}

// An outcome that cannot be written is a failure, although the letters are back.
func TestRequeueOnAFullDisk(t *testing.T) {
	c := &dead{change: change{all: true, yes: true, timeout: timeout{patience{duration(time.Minute)}}}}
	if err := c.requeue(t.Context(), &terminal{out: full{}}, slowly{}, "orders"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("the error is %v", err)
	}
}

// drip dead requeue may take longer than --timeout, but not for one answer.
func TestRequeueTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, hangs := range []bool{false, true} {
			c := &dead{change: change{yes: true, all: true}}
			c.timeout.timeout = patience{duration(2 * time.Second)}
			var want error
			if hangs {
				want = context.DeadlineExceeded
			}
			began := time.Now()
			err := c.requeue(t.Context(), &terminal{out: io.Discard}, slowly{letters: 9, hangs: hangs}, "orders")
			if took := time.Since(began); !errors.Is(err, want) || took > 11*time.Second {
				t.Errorf("requeue = %v after %v, want %v", err, took, want)
			}
		}
	})
}

// Only a terminal has no place for the whole error of a dead letter.
func TestDeadErrors(t *testing.T) {
	reason := "update stock: POST https://shop-1.example/stock: " + strings.Repeat("retry ", 20) + "no such item"
	for interactive, whole := range map[bool]bool{false: true, true: false} {
		var out strings.Builder
		err := new(dead).list(t.Context(), &terminal{out: &out, interactive: interactive}, reading{letter: queues.Letter{ID: "1", Reason: "failed", Error: reason}}, "orders")
		if err != nil || strings.Contains(out.String(), reason) != whole {
			t.Errorf("on a terminal (%v): %v\n%s", interactive, err, &out)
		}
	}
}

func TestDead(t *testing.T) {
	url := servers.UseRabbitMQ(t).URL()
	ch, queue := workQueue(t, url)
	if got := must(t, "dead", patient, "list", url, queue); got != "There are no dead letters.\n" {
		t.Errorf("before anything was given up: %s", got)
	}
	servers.Declare(t, ch, "classic", queue+".drip.dead")
	for i, reason := range []string{"failed", "too old", "failed", "postponed too often"} {
		servers.Publish(t, ch, queue+".drip.dead", amqp.Publishing{
			MessageId: fmt.Sprint("order-", i), Headers: amqp.Table{"x-drip-reason": reason, "x-drip-error": "no\nsuch order", "x-drip-age-ms": int64(61_000)},
		})
	}
	var list struct {
		More    bool
		Letters []struct {
			ID, Reason string
			Message_id string
			Age_ms     int
		}
	}
	read := func(args ...string) {
		t.Helper()
		list.Letters = nil
		ok(t, json.Unmarshal([]byte(must(t, append([]string{"dead", "list", url, queue, patient, "--json"}, args...)...)), &list))
	}
	for begin := time.Now(); len(list.Letters) < 4 && time.Since(begin) < time.Minute; {
		read()
	}
	if read("--rows", "2"); !list.More || len(list.Letters) != 2 {
		t.Errorf("two of four: %+v", list)
	}
	if read("--reason", "too old"); len(list.Letters) != 1 || list.Letters[0].Message_id != "order-1" || list.Letters[0].Age_ms != 61_000 {
		t.Errorf("the one that is too old: %+v", list)
	}
	text := must(t, "dead", "list", url, queue, patient)
	if strings.Count(text, "\n") != 5 || !strings.Contains(text, `no\nsuch order`) || !strings.Contains(text, "1m1s") {
		t.Errorf("the list is\n%s", text)
	}
	for _, s := range []step{
		{"requeue URL QUEUE", outcome{2, "", "drip dead: requeue needs --id ID, --reason REASON or --all\n"}},
		{"requeue URL QUEUE --all --reason failed", outcome{2, "", "drip dead: --all goes without --id and --reason\n"}},
		{"bury URL QUEUE", outcome{2, "", "drip dead: ACTION is \"bury\"; it is list or requeue\n"}},
		{"requeue URL QUEUE --reason failed", outcome{2, "", "drip dead: it puts back all dead letters of QUEUE with the reason failed; nobody is here to confirm that, so it needs --yes\n"}},
		{"requeue URL QUEUE --id none", outcome{1, "", "drip dead: QUEUE has no dead letter with the ID none; drip dead list shows the IDs\n"}},
		{"requeue URL QUEUE --id " + list.Letters[0].ID, outcome{0, "1 message put back\n", ""}},
		{"requeue URL QUEUE --reason failed --yes", outcome{0, "2 messages put back\n", ""}},
		{"requeue URL QUEUE --all --yes --json", outcome{0, "{\n  \"requeued\": 1\n}\n", ""}},
		{"requeue URL QUEUE --all --yes", outcome{0, "0 messages put back\n", ""}},
	} {
		s.args = "dead " + patient + " " + strings.ReplaceAll(s.args, "QUEUE", queue)
		s.err = strings.ReplaceAll(s.err, "QUEUE", queue)
		follow(t, url, s)
	}
}
