package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/entities"
	"github.com/drip-go/drip/storage"
)

// limits are what drip.Options says of an entity, as JSON says it. A zero field is the default of Options.
type limits struct {
	Size         int      `json:"size"`
	Rate         int      `json:"rate"`
	Interval     duration `json:"interval"`
	Windows      []window `json:"windows"`
	Concurrency  int      `json:"concurrency"`
	WaitForToken duration `json:"wait_for_token"`
	Lease        duration `json:"lease"`
	MaxLease     duration `json:"max_lease"`
}

type window struct {
	Size     int      `json:"size"`
	Rate     int      `json:"rate"`
	Interval duration `json:"interval"`
}

// options are the limits with a storage. An entity that is not stored has been idle.
func (l *limits) options(s storage.Storage) drip.Options {
	o := drip.Options{
		Size: l.Size, RefreshRate: l.Rate, RefreshInterval: time.Duration(l.Interval),
		Concurrency: l.Concurrency, WaitForToken: time.Duration(l.WaitForToken),
		Lease: time.Duration(l.Lease), MaxLease: time.Duration(l.MaxLease),
		Storage: s,
	}
	for _, w := range l.Windows {
		o.Windows = append(o.Windows, drip.Window{Size: w.Size, RefreshRate: w.Rate, RefreshInterval: time.Duration(w.Interval)})
	}
	return o
}

// bucket is one with these limits.
func (l *limits) bucket(s storage.Storage) (*drip.Bucket, error) {
	b, err := drip.New(l.options(s))
	if err != nil {
		return nil, usagef("limits: %s", strings.TrimPrefix(err.Error(), "drip: Options."))
	}
	return b, nil
}

// limitsFlag is the flag --limits.
type limitsFlag struct{ text string }

func (f *limitsFlag) flags(set *flag.FlagSet) {
	set.StringVar(&f.text, "limits", "", "what the consumers allow an entity: JSON, or a `file` of it; see drip help limits")
}

// read returns the limits, or nil if there are none.
func (f *limitsFlag) read(t *terminal) (*limits, error) {
	if f.text == "" {
		return nil, nil
	}
	name, text := "--limits", []byte(f.text)
	if !strings.HasPrefix(strings.TrimSpace(f.text), "{") {
		name = f.text
		var err error
		if text, err = readFile(t, name); err != nil {
			return nil, err
		}
	}
	var l limits
	if err := decode(name, text, &l); err != nil {
		return nil, err
	}
	_, err := l.bucket(nil) // they are possible
	return &l, err
}

// readFile reads a file, or the input for "-".
func readFile(t *terminal, name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(t.in)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, usageError{err}
	}
	return text, nil
}

// decode reads JSON in which every field has to be known.
func decode(name string, text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, err = d.Token(); err == io.EOF {
			return nil
		}
		err = errors.New("there is something behind the end")
	}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		name = fmt.Sprintf("%s:%d", name, 1+bytes.Count(text[:syntax.Offset], []byte("\n")))
	case errors.As(err, &kind):
		err = fmt.Errorf("%s is a %s; it must be a %s", kind.Field, kind.Value, kindName(kind))
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("it ends too early")
	}
	return usagef("%s: %s", name, strings.TrimPrefix(err.Error(), "json: "))
}

func kindName(e *json.UnmarshalTypeError) string {
	switch e.Type.Kind().String() {
	case "struct", "map":
		return "{ }"
	case "slice":
		return "list [ ]"
	case "int", "int64", "float64", "uint64":
		return "number"
	}
	return e.Type.Kind().String()
}

// duration is one that is written as "1m30s".
type duration time.Duration

func (d *duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 250ms, 1.5s or 24h", text)
	}
	*d = duration(parsed)
	return nil
}

func (d duration) MarshalText() ([]byte, error) { return []byte(entities.Short(time.Duration(d))), nil }
