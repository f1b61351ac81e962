// Package limitjson reads limits from files and command lines: JSON in which durations are texts.
package limitjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/entities"
	"github.com/drip-go/drip/storage"
)

// Limits are the limits of an entity in drip.Options. A zero field is the default of Options.
type Limits struct {
	Size         int      `json:"size"`
	Rate         int      `json:"rate"`
	Interval     Duration `json:"interval"`
	Unit         string   `json:"unit"`
	Windows      []Window `json:"windows"`
	Concurrency  int      `json:"concurrency"`
	WaitForToken Duration `json:"wait_for_token"`
	Lease        Duration `json:"lease"`
	MaxLease     Duration `json:"max_lease"`
}

// Window is a drip.Window.
type Window struct {
	Size     int      `json:"size"`
	Rate     int      `json:"rate"`
	Interval Duration `json:"interval"`
	Unit     string   `json:"unit"`
}

// Options are the limits with a storage. An entity that is not stored has been idle.
func (l *Limits) Options(s storage.Storage) drip.Options {
	own := l.Limit()
	return drip.Options{
		Size: own.Size, RefreshRate: own.RefreshRate, RefreshInterval: own.RefreshInterval, Unit: own.Unit,
		Windows: own.Windows, Concurrency: own.Concurrency, WaitForToken: own.WaitForToken,
		Lease: time.Duration(l.Lease), MaxLease: time.Duration(l.MaxLease),
		Storage: s,
	}
}

// Limit is the same without leases.
func (l *Limits) Limit() drip.Limit {
	out := drip.Limit{
		Size: l.Size, RefreshRate: l.Rate, RefreshInterval: time.Duration(l.Interval), Unit: l.Unit,
		Concurrency: l.Concurrency, WaitForToken: time.Duration(l.WaitForToken),
	}
	for _, w := range l.Windows {
		out.Windows = append(out.Windows, drip.Window{Size: w.Size, RefreshRate: w.Rate, RefreshInterval: time.Duration(w.Interval), Unit: w.Unit})
	}
	return out
}

// Decode decodes JSON in which every field has to be known. Its error begins with the name of the text.
func Decode(name string, text []byte, v any) error {
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
	return fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "json: "))
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

// Strictly decodes a part of a text, in which every field has to be known. An UnmarshalJSON needs it, because a
// Decoder's DisallowUnknownFields does not apply inside one.
func Strictly(text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

// Duration is a time.Duration that is written as "1m30s".
type Duration time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 250ms, 1.5s or 24h", text)
	}
	*d = Duration(parsed)
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(entities.Short(time.Duration(d))), nil }
