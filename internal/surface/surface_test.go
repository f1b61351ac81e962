package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drip-go/drip/internal/oktest"
)

const root = "../.."

func TestFilesAreThoseOfThePackages(t *testing.T) {
	texts, err := textsOf(root)
	oktest.OK(t, err)
	if names := outdated(filepath.Join(root, folder), texts); len(names) > 0 {
		t.Errorf("the exported surface has changed: go run ./internal/surface -w, and say so in CHANGELOG.md: %v", names)
	}
	delete(texts, "cli.txt")
	texts["page.txt"], texts["new.txt"] = "const A\n", "const A\n"
	if got := outdated(filepath.Join(root, folder), texts); !slices.Equal(got, []string{"cli.txt", "new.txt", "page.txt"}) {
		t.Errorf("outdated finds %v", got)
	}
}

func TestEveryIdentifierIsDocumented(t *testing.T) {
	all, err := read(root)
	oktest.OK(t, err)
	for _, s := range all {
		for _, name := range s.bare {
			t.Errorf("%s: %s has no doc comment", s.path, name)
		}
	}
}

// features are the Examples that a package must have, one for each thing that users do with it.
var features = map[string][]string{
	".": {
		"", "New", "Bucket_Admit", "Bucket_Settle", "Bucket_Cancel", "Bucket_Renew", "Bucket_GetDelay", "Bucket_GetDelayAt",
		"Bucket_Throttled", "Lease_Ticket", "Bucket_Pause", "Bucket_Reset", "Bucket_Inspect", "Options_windows", "Options_limits", "Options_shared",
		"Request_deadline", "SharedID", "ParseTicket", "Shadow", "Limit_shadow",
	},
	"adapters/amqp10":    {""},
	"adapters/asynq":     {"", "Headers"},
	"adapters/jetstream": {""},
	"adapters/river":     {""},
	"adapters/sqs":       {""},
	"consumer": {
		"", "New", "Options_request", "Limit", "LimitRequests", "OpenDelayQueues", "Throttled", "ThrottledShared", "Later", "Permanent",
		"OperationOf", "TraceHeaders",
	},
	"cli":      {"Main"},
	"decision": {"Limits_Apply"},
	"limiter":  {"", "Limiter_Do", "Limiter_TryConsume", "Limiter_ConsumeTimeout", "Limiter_SetLimit", "Options_storage"},
	"page":     {"Handler", "Options_allow"},
	"provider": {
		"Presets", "Preset_Limit", "Preset_Options", "Limit", "Options", "Read", "Status_Rules", "Transport", "Transport_follow", "RetryAfter",
		"Rule_UnmarshalJSON",
	},
	"queues":              {"Broker"},
	"queues/rabbitmq":     {"New", "Broker_Look", "Broker_Requeue"},
	"simulate":            {"Read", "Parse", "Scenario_Run", "Report_WriteTable"},
	"storage":             {"Storage", "Open", "Register", "Lister"},
	"storage/memory":      {""},
	"storage/postgres":    {"", "SchemaSQL"},
	"storage/redis":       {"", "New"},
	"storage/storagetest": {"Run", "Compare", "Keeps"},
	"telemetry":           {"New", "New_shadow", "Storage"},
	"worker":              {"Worker_Do", "Outcome", "ThrottledShared", "OperationOf", "ParseNote", "Drain"},
	"workertest":          {"Run", "Benchmark"},
}

func TestEveryFeatureHasAnExample(t *testing.T) {
	all, err := read(root)
	oktest.OK(t, err)
	n := 0
	for _, s := range all {
		n += len(s.examples)
		if len(s.examples) == 0 {
			t.Errorf("%s has no Example", s.path)
		}
		if features[s.path] == nil {
			t.Errorf("no feature of %s is named here", s.path)
		}
		for _, name := range features[s.path] {
			if !slices.Contains(s.examples, name) {
				t.Errorf("%s has no Example%s", s.path, name)
			}
		}
	}
	t.Logf("%d Examples in %d packages", n, len(all))
}

func TestRead(t *testing.T) {
	s, err := readPackage("testdata/shapes")
	oktest.OK(t, err)
	want := []string{
		"const Limit = 3", "const Off Kind", "const On Kind",
		"field Point.X int", "field Point.Y int",
		"func (p *Point) Move(dx int) error", "func NewPoint() *Point",
		"interface method Mover.Move(dx int) error",
		"type Kind int", "type Mover interface", "type Point struct", "type Point has unexported members", "type Set[T comparable] map[T]bool",
		"var ErrNone error",
	}
	slices.Sort(want)
	if !slices.Equal(s.lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(s.lines, "\n"), strings.Join(want, "\n"))
	}
	if !slices.Equal(s.bare, []string{"ErrNone", "Point.Y"}) {
		t.Errorf("without a comment: %q", s.bare)
	}
}
