package storagetest

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
	"github.com/drip-go/drip/storage/memory"
)

// wrong are backends that each break one rule. A mistake that depends on luck is here as small as it can be.
var wrong = map[string]func() storage.Storage{
	"forgets after 10 ms":                      func() storage.Storage { return &mutant{keep: newKeep(), forget: 10 * time.Millisecond} },
	"forgets after 1 s":                        func() storage.Storage { return &mutant{keep: newKeep(), forget: time.Second} },
	"forgets after 1 min":                      func() storage.Storage { return &mutant{keep: newKeep(), forget: time.Minute} },
	"forgets after 1 day":                      func() storage.Storage { return &mutant{keep: newKeep(), forget: 24 * time.Hour} },
	"forgets 1 min after it was asked for":     func() storage.Storage { return &mutant{keep: newKeep(), forget: time.Minute, sliding: true} },
	"forgets by a timer of 1 s":                func() storage.Storage { return &mutant{keep: newKeep(), timer: time.Second} },
	"forgets by a timer of 1 min":              func() storage.Storage { return &mutant{keep: newKeep(), timer: time.Minute} },
	"forgets 10 ms of a simulation later":      func() storage.Storage { return &mutant{keep: newKeep(), simulated: 10} },
	"forgets 1 s of a simulation later":        func() storage.Storage { return &mutant{keep: newKeep(), simulated: 1000} },
	"forgets 1 min of a simulation later":      func() storage.Storage { return &mutant{keep: newKeep(), simulated: 60_000} },
	"forgets by the machine's clock at Until":  func() storage.Storage { return &mutant{keep: newKeep(), until: true} },
	"forgets after whole seconds":              func() storage.Storage { return &mutant{keep: newKeep(), whole: true} },
	"forgets at the Until of the first Set":    func() storage.Storage { return &mutant{keep: newKeep(), first: true} },
	"forgets what it decided after 10 ms":      func() storage.Storage { return &decider{Storage: memory.New(), forget: 10 * time.Millisecond} },
	"forgets what it decided after 1 s":        func() storage.Storage { return &decider{Storage: memory.New(), forget: time.Second} },
	"forgets what it decided after 1 min":      func() storage.Storage { return &decider{Storage: memory.New(), forget: time.Minute} },
	"Get returns the bytes it keeps":           func() storage.Storage { return &mutant{keep: newKeep(), aliasGet: true} },
	"Set keeps the bytes it is given":          func() storage.Storage { return &mutant{keep: newKeep(), aliasSet: true} },
	"a lost race is no ErrConflict":            func() storage.Storage { return &mutant{keep: newKeep(), nameless: true} },
	"forgets the oldest of 5000 keys":          func() storage.Storage { return &mutant{keep: newKeep(), bound: 5000} },
	"revisions repeat after 255":               func() storage.Storage { return &revisions{most: 255} },
	"revisions repeat after 65535":             func() storage.Storage { return &revisions{most: 65535} },
	"revisions repeat after 2":                 func() storage.Storage { return &revisions{most: 2} },
	"revisions begin at 0":                     func() storage.Storage { return zeroth{&revisions{most: 1 << 60}} },
	"Set refuses the revisions of Get":         func() storage.Storage { return refuser{memory.New()} },
	"revisions begin again after forgetting":   func() storage.Storage { return &revisions{most: 1 << 60, forget: true} },
	"revisions begin again, by simulated time": func() storage.Storage { return &revisions{most: 1 << 60, forget: true, simulated: true} },
	"keys are made valid UTF-8":                keyed(func(k string) string { return strings.ToValidUTF8(k, "\ufffd") }),
	"keys lose what is no UTF-8":               keyed(func(k string) string { return strings.ToValidUTF8(k, "") }),
	"keys are text":                            keyed(func(k string) string { return string([]rune(k)) }),
	"shared limits are left out":               func() storage.Storage { return &loose{Storage: memory.New(), without: true} },
	"a shared limit is stored unlocked":        func() storage.Storage { return &loose{Storage: memory.New()} },
	"keys are cut at 63":                       keyed(func(k string) string { return k[:min(len(k), 63)] }),
	"keys are cut at 255":                      keyed(func(k string) string { return k[:min(len(k), 255)] }),
	"keys are cut at 2000":                     keyed(func(k string) string { return k[:min(len(k), 2000)] }),
	"keys are cut at 65535":                    keyed(func(k string) string { return k[:min(len(k), 65535)] }),
	"keys end at a zero byte":                  keyed(func(k string) string { k, _, _ = strings.Cut(k, "\x00"); return k }),
	"keys are names of files":                  keyed(func(k string) string { return strings.ReplaceAll(k, "/", "_") }),
	"keys have no spaces":                      keyed(func(k string) string { return strings.ReplaceAll(k, " ", "%20") }),
	"keys have line feeds":                     keyed(func(k string) string { return strings.ReplaceAll(k, "\r\n", "\n") }),
	"keys lose shared:":                        keyed(func(k string) string { return strings.TrimPrefix(k, "shared:") }),
	"keys are lower case":                      keyed(strings.ToLower),
	"keys are trimmed":                         keyed(strings.TrimSpace),
	"keys are their hash tags":                 keyed(hashTag),
	"keys are 12 bits":                         keyed(hash12),
	"keys are a CRC-32":                        keyed(func(k string) string { return fmt.Sprint(crc32.ChecksumIEEE([]byte(k))) }),
	"keys are an FNV-1a":                       keyed(func(k string) string { return fmt.Sprint(fnv32a(k)) }),
	"data are made valid UTF-8":                data(func(d []byte) []byte { return []byte(strings.ToValidUTF8(string(d), "\ufffd")) }),
	"data are text":                            data(func(d []byte) []byte { return []byte(string([]rune(string(d)))) }),
	"data are cut at 4 KB":                     data(func(d []byte) []byte { return d[:min(len(d), 4096)] }),
	"data are cut at 65535":                    data(func(d []byte) []byte { return d[:min(len(d), 65535)] }),
	"data are cut at 64 KiB":                   data(func(d []byte) []byte { return d[:min(len(d), 65536)] }),
	"data are whole numbers":                   data(func(d []byte) []byte { return d[:len(d)/8*8] }),
	"data end at a zero byte":                  data(func(d []byte) []byte { s, _, _ := strings.Cut(string(d), "\x00"); return []byte(s) }),
	"the first Set is not locked":              func() storage.Storage { return &mutant{keep: newKeep(), firstRace: true} },
	"the first Set is hardly unlocked":         func() storage.Storage { return &mutant{keep: newKeep(), firstRace: true, tight: true} },
	"no Set is quite locked":                   func() storage.Storage { return &mutant{keep: newKeep(), race: true, tight: true} },
	"no Set is locked":                         func() storage.Storage { return &mutant{keep: newKeep(), race: true} },
	"a Set of another key may come between":    func() storage.Storage { return &tornStorage{} },
	"two Sets of different keys lose one":      func() storage.Storage { return &replaced{keep: newKeep()} },
	"1 in 100 conflicts is accepted":           func() storage.Storage { return &mutant{keep: newKeep(), accept: 100} },
	"1 in 100 conflicts of a first Set accepted": func() storage.Storage {
		return &mutant{keep: newKeep(), accept: 100, only: func(rev storage.Revision) bool { return rev == 0 }}
	},
	"1 in 100 conflicts of a later Set accepted": func() storage.Storage {
		return &mutant{keep: newKeep(), accept: 100, only: func(rev storage.Revision) bool { return rev != 0 }}
	},
	"1 in 100 conflicts is stored":            func() storage.Storage { return &mutant{keep: newKeep(), accept: 100, quietly: true} },
	"the last Set wins":                       func() storage.Storage { return &mutant{keep: newKeep(), accept: 1} },
	"1 in 100 Sets is lost":                   func() storage.Storage { return &mutant{keep: newKeep(), lose: 100} },
	"empty data are nothing":                  func() storage.Storage { return &mutant{keep: newKeep(), empty: true} },
	"contexts are not looked at":              func() storage.Storage { return &mutant{keep: newKeep(), deaf: true} },
	"Do loses races":                          func() storage.Storage { return &decider{Storage: memory.New(), torn: true} },
	"Do loses leases that were set":           func() storage.Storage { return &decider{Storage: memory.New(), leaseless: true} },
	"Do keeps no more than 100 leases":        func() storage.Storage { return &decider{Storage: memory.New(), most: 100} },
	"Do keeps no more than 1000 leases":       func() storage.Storage { return &decider{Storage: memory.New(), most: 1000} },
	"Do goes by its own clock":                func() storage.Storage { return &decider{Storage: memory.New(), own: true} },
	"Do goes by milliseconds since its start": func() storage.Storage { return &decider{Storage: memory.New(), begin: time.Now()} },
	"Do gives one unit too many":              func() storage.Storage { return &decider{Storage: memory.New(), generous: true} },
	"Do makes pins hold for ever":             func() storage.Storage { return &decider{Storage: memory.New(), endless: true} },
	"Do gives no new revision":                func() storage.Storage { return &decider{Storage: memory.New(), still: true} },
	"Do takes unknown bytes for nobody's":     func() storage.Storage { return &decider{Storage: memory.New(), trusting: true} },
	"Read and List leave leases out":          func() storage.Storage { return &teller{Storage: memory.New(), leaseless: true} },
	"List tells the first page alone":         func() storage.Storage { return &teller{Storage: memory.New(), page: 1000} },
	"List leaves an entity out":               func() storage.Storage { return &teller{Storage: memory.New(), skip: true} },
	"List holds up Set":                       func() storage.Storage { return &teller{Storage: memory.New(), locks: true} },
	"List holds up Set of what it tells":      func() storage.Storage { return &teller{Storage: memory.New(), locksOne: true} },
	"Read makes an entity":                    func() storage.Storage { return reader{memory.New()} },
	"List goes on after an error":             func() storage.Storage { return &teller{Storage: memory.New(), stubborn: true} },
	"List fails at bytes that are no state":   func() storage.Storage { return &teller{Storage: memory.New(), strict: true} },
	"List tells bytes that are no state":      func() storage.Storage { return &teller{Storage: memory.New(), blind: true} },
	"List tells all leases":                   func() storage.Storage { return &teller{Storage: memory.New(), all: true} },
	"List counts the leases that it tells":    func() storage.Storage { return &teller{Storage: memory.New(), miscounts: true} },
	"Read has a clock of its own":             func() storage.Storage { return &teller{Storage: memory.New(), ahead: 5 * time.Minute} },
	"Read returns the state it keeps":         func() storage.Storage { return &teller{Storage: memory.New(), aliasRead: true} },
	"Do overwrites a Set":                     func() storage.Storage { return &decider{Storage: memory.New(), forceful: true} },
	"Do changes the limits":                   func() storage.Storage { return &decider{Storage: memory.New(), spoils: true} },
	"Do tells that keys are apart afterwards": func() storage.Storage { return &decider{Storage: memory.New(), apart: true} },
	"Get reads the revision after the data":   func() storage.Storage { return &mutant{keep: newKeep(), late: true} },
	"a time to live of 0 is refused":          func() storage.Storage { return past{memory.New()} },
	"Do changes one key and not the other":    func() storage.Storage { return &decider{Storage: memory.New(), partial: true} },
}

// TestWrongBackends runs the suite in a process of its own on each wrong backend. It must fail there.
func TestWrongBackends(t *testing.T) {
	if name := os.Getenv("DRIP_WRONG_BACKEND"); name != "" {
		Run(t, func(*testing.T) storage.Storage { return wrong[name]() })
		return
	}
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWrongBackends$", "-test.failfast", "-test.short", "-test.timeout=2m")
			cmd.Env = append(os.Environ(), "DRIP_WRONG_BACKEND="+name)
			out, err := cmd.CombinedOutput()
			text := string(out)
			if err == nil {
				t.Fatalf("Run finds nothing wrong with a backend that is: %s", name)
			}
			if !strings.Contains(text, "--- FAIL: TestWrongBackends/") || strings.Contains(text, "panic:") {
				t.Fatalf("Run on a wrong backend fails a rule and ends; this is what it printed (%v):\n%s", err, text)
			}
			for line := range strings.Lines(text) {
				if strings.Contains(line, "_test.go:") || strings.Contains(line, ".go:") {
					t.Log(strings.TrimSpace(line))
					break
				}
			}
		})
	}
}

// A mistake of every round of a race is told once, with its rule.
func TestFailuresAreFew(t *testing.T) {
	for _, rule := range []string{"OneFirstSetWins", "OneSetOfARevisionWins"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWrongBackends$/^"+rule+"$", "-test.short")
		cmd.Env = append(os.Environ(), "DRIP_WRONG_BACKEND=a lost race is no ErrConflict")
		out, err := cmd.CombinedOutput()
		told := strings.Count(string(out), "a Set that loses a race returns ErrConflict: it returned lost")
		if lines := strings.Count(string(out), "storagetest.go:"); err == nil || told == 0 || lines > 10 {
			t.Errorf("%s: %d lines, %d with the rule: %v\n%.2000s", rule, lines, told, err, out)
		}
	}
}

// A rule ends although no Set ever succeeds.
func TestRunEnds(t *testing.T) {
	for name, rule := range map[string]string{"revisions begin at 0": "NoLostUpdate", "Set refuses the revisions of Get": "AtomicAndSet"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWrongBackends$/^"+rule+"$", "-test.short", "-test.timeout=1m")
		cmd.Env = append(os.Environ(), "DRIP_WRONG_BACKEND="+name)
		out, err := cmd.CombinedOutput()
		if text := string(out); err == nil || !strings.Contains(text, "a Set fails only if") || strings.Contains(text, "panic:") {
			t.Errorf("%s: %v\n%.2000s", name, err, text)
		}
	}
}

// mutant is keep with mistakes.
type mutant struct {
	*keep
	forget             time.Duration // after so long
	sliding            bool          // since the last look
	timer              time.Duration
	whole              bool  // seconds only
	nameless           bool  // a lost race has another error
	first              bool  // a later Set leaves the end of the first one
	simulated          int64 // ms of a later Set's Now
	until              bool
	aliasGet, aliasSet bool
	firstRace, race    bool
	tight              bool // nothing is done between the locks
	accept             int
	only               func(storage.Revision) bool
	quietly            bool
	lose               int
	empty, deaf        bool
	late               bool
	bound              int // of the number of keys

	order  []string // of the first Sets
	times  sync.Map // of the last Set, by key
	nows   sync.Map
	untils sync.Map
}

// over drops key if the mutant thinks its time has come. Others look up nothing here: with long keys that would take a
// millisecond in which the callers of a race come apart.
func (m *mutant) over(key string) {
	drop := false
	if m.forget > 0 {
		at, ok := m.times.Load(key)
		drop = ok && time.Since(at.(time.Time)) > m.forget
	}
	if m.until || m.whole || m.first {
		at, ok := m.untils.Load(key)
		drop = ok && time.Now().UnixMilli() >= at.(int64)
	}
	if drop {
		m.drop(key)
	}
	if m.sliding {
		m.times.Store(key, time.Now())
	}
}

func (m *mutant) drop(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.m, key)
}

func (m *mutant) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	m.over(key)
	if m.deaf {
		ctx = context.Background()
	}
	if m.aliasGet {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.m[key].state, m.m[key].rev, ctx.Err()
	}
	st, rev, err := m.keep.Get(ctx, key)
	if m.late {
		_, rev, err = m.keep.Get(ctx, key)
	}
	if m.empty && len(st.Data) == 0 {
		return storage.State{}, storage.NoRevision, err
	}
	return st, rev, err
}

func (m *mutant) Set(ctx context.Context, key string, s storage.State, rev storage.Revision) error {
	m.over(key)
	if m.deaf {
		ctx = context.Background()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if m.simulated > 0 {
		m.nows.Range(func(other, at any) bool {
			if s.Now-at.(int64) > m.simulated && s.Now-at.(int64) < 1e11 {
				m.drop(other.(string))
			}
			return true
		})
		m.nows.Store(key, s.Now)
	}
	if m.lose > 0 && rand.IntN(m.lose) == 0 {
		if _, current, _ := m.keep.Get(ctx, key); current == rev {
			return nil
		}
	}
	if m.empty && len(s.Data) == 0 {
		return nil
	}
	if m.tight {
		s.Data = slices.Clone(s.Data)
	}
	if m.aliasSet || m.race || m.firstRace && rev == storage.NoRevision {
		m.mu.Lock()
		current := m.m[key].rev
		if m.race || m.firstRace {
			m.mu.Unlock()
		}
		if current != rev {
			if m.aliasSet {
				m.mu.Unlock()
			}
			return storage.ErrConflict
		}
		if !m.aliasSet {
			if !m.tight {
				s.Data = slices.Clone(s.Data)
			}
			m.mu.Lock()
		}
		m.rev++
		m.m[key] = record{s, m.rev}
		m.mu.Unlock()
		return ctx.Err()
	}
	err := m.keep.Set(ctx, key, s, rev)
	if m.bound > 0 && err == nil && rev == storage.NoRevision {
		m.mu.Lock()
		if m.order = append(m.order, key); len(m.order) > m.bound {
			delete(m.m, m.order[0])
			m.order = m.order[1:]
		}
		m.mu.Unlock()
	}
	if err == storage.ErrConflict && m.accept > 0 && rand.IntN(m.accept) == 0 && (m.only == nil || m.only(rev)) {
		_, current, _ := m.keep.Get(ctx, key)
		err = m.keep.Set(ctx, key, s, current)
		if m.quietly {
			err = storage.ErrConflict
		}
	}
	if err == storage.ErrConflict && m.nameless {
		return errors.New("lost")
	}
	if err == nil && m.first && rev != storage.NoRevision {
		return nil
	}
	if err == nil {
		m.times.Store(key, time.Now())
		m.untils.Store(key, s.Until)
		if now := time.Now().UnixMilli(); (m.whole || m.first) && (s.Until == decision.Never || s.Now < now-60_000 || s.Now > now+60_000) {
			m.untils.Delete(key)
		} else if m.whole {
			m.untils.Store(key, now+(s.Until-s.Now)/1000*1000)
		}
		if m.timer > 0 {
			time.AfterFunc(m.timer, func() { m.drop(key) })
		}
	}
	return err
}

// keyed is keep with other keys.
func keyed(f func(string) string) func() storage.Storage {
	return func() storage.Storage { return keyMutant{newKeep(), f} }
}

type keyMutant struct {
	storage.Storage
	f func(string) string
}

func (m keyMutant) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	return m.Storage.Get(ctx, m.f(key))
}

func (m keyMutant) Set(ctx context.Context, key string, s storage.State, rev storage.Revision) error {
	return m.Storage.Set(ctx, m.f(key), s, rev)
}

func hashTag(k string) string {
	if _, rest, ok := strings.Cut(k, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			return tag
		}
	}
	return k
}

func fnv32a(k string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(k))
	return h.Sum32()
}

func hash12(k string) string { return string(rune(fnv32a(k) >> 20)) }

// data is keep with other bytes.
func data(f func([]byte) []byte) func() storage.Storage {
	return func() storage.Storage { return dataMutant{newKeep(), f} }
}

type dataMutant struct {
	*keep
	f func([]byte) []byte
}

func (m dataMutant) Set(ctx context.Context, key string, s storage.State, rev storage.Revision) error {
	s.Data = m.f(s.Data)
	return m.keep.Set(ctx, key, s, rev)
}

// refuser is a backend whose Get returns the revision after the stored one.
type refuser struct{ *memory.Storage }

func (r refuser) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	st, rev, err := r.Storage.Get(ctx, key)
	return st, rev + 1, err
}

// zeroth gives the first Set of a key the revision 0, which is NoRevision.
type zeroth struct{ *revisions }

func (z zeroth) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	st, rev, err := z.revisions.Get(ctx, key)
	return st, max(rev, 1) - 1, err
}

func (z zeroth) Set(ctx context.Context, key string, s storage.State, rev storage.Revision) error {
	if rev != storage.NoRevision {
		rev++
	}
	return z.revisions.Set(ctx, key, s, rev)
}

// revisions counts the revisions of each key in its record, from 1 to most. It may forget the record from Until on.
type revisions struct {
	mu                sync.Mutex
	m                 map[string]record
	most              storage.Revision
	forget, simulated bool
}

func (r *revisions) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec := r.m[key]; r.forget && !r.simulated && rec.state.Until <= time.Now().UnixMilli() && rec.state.Now > time.Now().UnixMilli()-400*86_400_000 && rec.state.Now < time.Now().UnixMilli()+60_000 {
		delete(r.m, key)
	}
	rec := r.m[key]
	rec.state.Data = slices.Clone(rec.state.Data)
	return rec.state, rec.rev, ctx.Err()
}

func (r *revisions) Set(ctx context.Context, key string, s storage.State, rev storage.Revision) error {
	if _, _, err := r.Get(ctx, key); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.m[key].rev != rev {
		return storage.ErrConflict
	}
	if r.m == nil {
		r.m = map[string]record{}
	}
	maps.DeleteFunc(r.m, func(_ string, rec record) bool {
		return r.simulated && rec.state.Until <= s.Now && rec.state.Until > s.Now-400*86_400_000
	})
	s.Data = slices.Clone(s.Data)
	r.m[key] = record{s, rev%r.most + 1}
	return nil
}

// tornStorage is a sync.Map that is loaded and then stored to.
type tornStorage struct {
	m sync.Map
}

func (s *tornStorage) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	v, ok := s.m.Load(key)
	if !ok {
		return storage.State{}, storage.NoRevision, ctx.Err()
	}
	r := *v.(*record)
	r.state.Data = slices.Clone(r.state.Data)
	return r.state, r.rev, ctx.Err()
}

func (s *tornStorage) Set(ctx context.Context, key string, st storage.State, rev storage.Revision) error {
	_, current, err := s.Get(ctx, key)
	if err != nil {
		return err
	}
	if current != rev {
		return storage.ErrConflict
	}
	st.Data = slices.Clone(st.Data)
	s.m.Store(key, &record{st, rev + 1})
	return nil
}

// replaced loses a Set while a Set of another key is under way, as a backend does that replaces all that it keeps and locks one key.
type replaced struct {
	*keep
	locks sync.Map
	sets  atomic.Int64 // under way
}

func (s *replaced) Set(ctx context.Context, key string, st storage.State, rev storage.Revision) error {
	lock, _ := s.locks.LoadOrStore(key, new(sync.Mutex))
	lock.(*sync.Mutex).Lock()
	defer lock.(*sync.Mutex).Unlock()
	defer s.sets.Add(-1)
	if s.sets.Add(1) > 1 {
		_, current, err := s.Get(ctx, key)
		if err == nil && current != rev {
			err = storage.ErrConflict
		}
		return err
	}
	runtime.Gosched()
	return s.keep.Set(ctx, key, st, rev)
}

// decider is memory with mistakes in Do.
type decider struct {
	*memory.Storage
	forget                    time.Duration
	torn, leaseless, own      bool
	generous, still, trusting bool
	endless                   bool
	forceful, partial         bool
	spoils, apart             bool
	begin                     time.Time
	most                      int

	mu    sync.Mutex
	times map[string]time.Time
	lapse map[string]int // how often a key was forgotten
}

func (d *decider) Do(ctx context.Context, key string, l *decision.Limits, within []storage.Within, op decision.Op) (decision.Answer, error) {
	switch {
	case d.forget > 0:
		d.mu.Lock()
		if d.times == nil {
			d.times, d.lapse = map[string]time.Time{}, map[string]int{}
		}
		if at, ok := d.times[key]; ok && time.Since(at) > d.forget {
			d.lapse[key]++
		}
		d.times[key] = time.Now()
		key += strings.Repeat(" forgotten", d.lapse[key])
		d.mu.Unlock()
	case d.torn:
		if op.Now == decision.OwnClock {
			op.Now = time.Now().UnixMilli()
		}
		if len(within) > 0 {
			return decision.Answer{}, storage.ErrApart
		}
		return plain{careless{d.Storage}}.Do(ctx, key, l, nil, op)
	case d.forceful && len(within) == 0:
		d.mu.Lock() // which Set does not take
		defer d.mu.Unlock()
		if op.Now == decision.OwnClock {
			op.Now = time.Now().UnixMilli()
		}
		return plain{forceful{d.Storage}}.Do(ctx, key, l, nil, op)
	case d.spoils:
		a, err := d.Storage.Do(ctx, key, l, within, op)
		for _, w := range within {
			w.Limits.Guess++
		}
		return a, err
	case d.apart && len(within) > 0:
		_, _ = d.Storage.Do(ctx, within[0].Key, within[0].Limits, nil, op)
		return decision.Answer{}, storage.ErrApart
	case d.partial:
		a, err := d.Storage.Do(ctx, key, l, within, op)
		if err != nil && len(within) > 0 {
			_, _ = d.Storage.Do(ctx, key, l, nil, op)
		}
		return a, err
	case d.leaseless:
		st, rev, err := d.Get(ctx, key)
		var s decision.State
		if held, bad := storage.Decode(st.Data, &s); err == nil && bad == nil && len(held) > 0 && d.times[key].IsZero() {
			st.Data, st.Now, st.Until = storage.Encode(&s, nil), op.Now, decision.Never
			_ = d.Set(ctx, key, st, rev)
		}
		if d.times == nil {
			d.times = map[string]time.Time{}
		}
		d.times[key] = time.Now()
	case d.most > 0:
		a, err := d.Storage.Do(ctx, key, l, within, op)
		st, rev, _ := d.Get(ctx, key)
		var s decision.State
		if held, bad := storage.Decode(st.Data, &s); bad == nil && len(held) > d.most {
			_ = d.Set(ctx, key, storage.State{Data: storage.Encode(&s, held[:d.most]), Now: s.Now, Until: decision.Never}, rev)
		}
		return a, err
	case d.own:
		op.Now = decision.OwnClock
	case !d.begin.IsZero() && op.Now == decision.OwnClock:
		op.Now = time.Since(d.begin).Milliseconds()
	case d.generous && op.Kind == decision.Settle:
		op.Cost[0] = max(0, op.Cost[0]-1)
	case d.endless && op.Kind == decision.Pin:
		op.For = 0
	case d.still:
		before, rev, _ := d.Get(ctx, key)
		a, err := d.Storage.Do(ctx, key, l, within, op)
		d.mu.Lock()
		defer d.mu.Unlock()
		if before.Data != nil {
			if d.lapse == nil {
				d.lapse = map[string]int{}
			}
			if d.lapse[key] == 0 {
				d.lapse[key] = int(rev)
			}
		}
		return a, err
	case d.trusting:
		st, rev, _ := d.Get(ctx, key)
		if _, bad := storage.Decode(st.Data, new(decision.State)); bad != nil {
			_ = d.Set(ctx, key, storage.State{Now: op.Now, Until: decision.Never}, rev)
		}
	}
	return d.Storage.Do(ctx, key, l, within, op)
}

func (d *decider) Get(ctx context.Context, key string) (storage.State, storage.Revision, error) {
	st, rev, err := d.Storage.Get(ctx, key)
	if d.lapse[key] > 0 && d.still {
		rev = storage.Revision(d.lapse[key])
	}
	return st, rev, err
}

// careless takes a conflict for a success, so that plain with it loses decisions.
type careless struct{ storage.Storage }

func (c careless) Set(ctx context.Context, key string, st storage.State, rev storage.Revision) error {
	_ = c.Storage.Set(ctx, key, st, rev)
	return nil
}

// forceful overwrites what others have stored, so that plain with it loses their changes.
type forceful struct{ storage.Storage }

func (f forceful) Set(ctx context.Context, key string, st storage.State, rev storage.Revision) error {
	runtime.Gosched() // others come in between on a busy machine, too
	err := f.Storage.Set(ctx, key, st, rev)
	for errors.Is(err, storage.ErrConflict) {
		if _, rev, err = f.Get(ctx, key); err == nil {
			err = f.Storage.Set(ctx, key, st, rev)
		}
	}
	return err
}

// teller is memory with mistakes in Read and List.
type teller struct {
	*memory.Storage
	leaseless, skip, stubborn bool
	locks, locksOne           bool
	telling                   atomic.Value // the key that is told, if it is locked
	all, miscounts, aliasRead bool
	page                      int
	ahead                     time.Duration
	strict, blind             bool     // about bytes that are no state
	foreign                   sync.Map // their keys
	listing                   sync.Mutex
	entries                   map[string]entryAt
}

type entryAt struct {
	e   storage.Entry
	rev storage.Revision
}

func (r *teller) Set(ctx context.Context, key string, s storage.State, rev storage.Revision) error {
	if _, err := storage.Decode(s.Data, new(decision.State)); err != nil {
		r.foreign.Store(key, err)
	}
	if !r.locksOne || r.telling.Load() == key {
		r.listing.Lock()
		defer r.listing.Unlock()
	}
	return r.Storage.Set(ctx, key, s, rev)
}

func (r *teller) Read(ctx context.Context, key string) (storage.Entry, error) {
	if r.aliasRead {
		_, rev, _ := r.Get(ctx, key)
		kept, ok := r.entries[key]
		if !ok || kept.rev != rev {
			e, err := r.Storage.Read(ctx, key)
			if err != nil {
				return e, err
			}
			kept = entryAt{e, rev}
			if r.entries == nil {
				r.entries = map[string]entryAt{}
			}
			r.entries[key] = kept
		}
		return kept.e, ctx.Err()
	}
	e, err := r.Storage.Read(ctx, key)
	if r.leaseless && len(e.Leases) > 2 {
		e.Leases = e.Leases[:2]
	}
	e.Time = e.Time.Add(r.ahead)
	return e, err
}

func (r *teller) List(ctx context.Context, each func(storage.Entry) error) error {
	if r.locks {
		r.listing.Lock()
		defer r.listing.Unlock()
	}
	for key, err := range r.foreign.Range {
		if r.strict {
			return err.(error)
		} else if r.blind {
			if err := each(storage.Entry{Key: key.(string), Time: time.Now()}); err != nil {
				return err
			}
		}
	}
	first, told := true, 0
	return r.Storage.List(ctx, func(e storage.Entry) error {
		if told++; r.page > 0 && told > r.page {
			return nil
		}
		skip := r.skip && first
		first = false
		if skip {
			return nil
		}
		if r.all && e.Out > storage.MostListed {
			st, _, _ := r.Get(ctx, e.Key)
			e.Leases, _ = storage.Decode(st.Data, new(decision.State))
		}
		if r.miscounts {
			e.Out = int64(len(e.Leases))
		}
		if r.locksOne {
			r.listing.Lock()
			defer r.listing.Unlock()
			r.telling.Store(e.Key)
			defer r.telling.Store("")
		}
		if err := each(e); !r.stubborn {
			return err
		}
		return nil
	})
}

// loose decides within shared limits beside its storage. Without leaves them out; otherwise what another has stored
// meanwhile is overwritten.
type loose struct {
	*memory.Storage
	without bool
}

func (s *loose) Do(ctx context.Context, key string, l *decision.Limits, within []storage.Within, op decision.Op) (decision.Answer, error) {
	if s.without || len(within) == 0 {
		return s.Storage.Do(ctx, key, l, nil, op)
	}
	return plain{forceful{s.Storage}}.Do(ctx, key, l, within, op)
}

// past refuses a State that may be forgotten at once, as a server does that takes no time to live of 0.
type past struct{ storage.Storage }

func (p past) Set(ctx context.Context, key string, s storage.State, rev storage.Revision) error {
	if s.Until <= s.Now {
		return errors.New("invalid expire time")
	}
	return p.Storage.Set(ctx, key, s, rev)
}

// reader stores an entity that nobody has when it is asked for it.
type reader struct{ *memory.Storage }

func (r reader) Read(ctx context.Context, key string) (storage.Entry, error) {
	e, err := r.Storage.Read(ctx, key)
	if _, rev, failed := r.Get(ctx, key); err != nil || failed != nil || rev != storage.NoRevision {
		return e, err
	}
	s := storage.State{Data: storage.Encode(&e.State, nil), Now: e.Time.UnixMilli(), Until: decision.Never}
	return e, r.Set(ctx, key, s, storage.NoRevision)
}
