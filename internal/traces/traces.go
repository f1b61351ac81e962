// Package traces replays runs recorded from npm dripping-bucket 1.2.0 against drip.
package traces

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/storage"
)

// Each line of it is a run: the options of a bucket, the calls and their answers.
//
//go:embed traces.jsonl.gz
var recorded []byte

// Runs is how many there are in the recording.
const Runs = 300

const allDelays = 25_836

// Replay makes the calls of the first runs of the recording to a bucket on s, each run with entities of its own. The
// error tells the first delay that differs, or that the recording is not whole.
func Replay(ctx context.Context, s storage.Storage, runs int) error {
	unzipped, err := gzip.NewReader(bytes.NewReader(recorded))
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(unzipped)
	lines.Buffer(nil, 1<<20)
	done, delays := 0, 0
	for done < runs && lines.Scan() {
		n, err := replay(ctx, lines.Bytes(), s)
		if err != nil {
			return err
		}
		delays += n
		done++
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if done != runs || runs == Runs && delays != allDelays {
		return fmt.Errorf("%d runs with %d delays were compared, of %d", done, delays, runs)
	}
	return nil
}

func replay(ctx context.Context, line []byte, s storage.Storage) (delays int, err error) {
	var run struct {
		Seed, Size, RefreshRate                    int
		RefreshIntervalMs, WaitForTokenMs, StartMs int64
		Steps                                      [][]any // "get", entity, ms, delay; or "return", entity, ms
	}
	if err := json.Unmarshal(line, &run); err != nil {
		return 0, err
	}
	b, err := drip.New(drip.Options{
		Size: run.Size, RefreshRate: run.RefreshRate,
		RefreshInterval: time.Duration(run.RefreshIntervalMs) * time.Millisecond,
		WaitForToken:    time.Duration(run.WaitForTokenMs) * time.Millisecond,
		Start:           time.UnixMilli(run.StartMs), Storage: s,
	})
	if err != nil {
		return 0, err
	}
	for i, step := range run.Steps {
		entity := fmt.Sprintf("%d-%v", run.Seed, step[1])
		if step[0] == "return" {
			if err := b.ReturnToken(ctx, entity); err != nil {
				return delays, err
			}
			continue
		}
		now := time.UnixMilli(int64(step[2].(float64)))
		got, err := b.GetDelayAt(ctx, entity, now)
		if err != nil {
			return delays, err
		}
		if want := time.Duration(step[3].(float64)) * time.Millisecond; got != want {
			return delays, fmt.Errorf("seed %d step %d: GetDelayAt(%q, %d) = %v, recorded %v", run.Seed, i, entity, now.UnixMilli(), got, want)
		}
		delays++
	}
	return delays, nil
}
