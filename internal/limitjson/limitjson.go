// Package limitjson reads limits from files and command lines: JSON in which durations are texts.
package limitjson

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strings"
	"time"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/entities"
	"github.com/drip-go/drip/provider"
)

// Set is what a text says besides the limits of an entity: a preset in their place, and the limits that entities share.
type Set struct {
	Preset string            `json:"preset"`
	Travel Duration          `json:"travel"` // the most time that a request is on its way, for the preset
	Shared map[string]Limits `json:"shared"`
}

// Options are the limits of the preset, or an entity's own unless it is nil, and the shared limits. A shared limit takes
// the place of the preset's of the same name. They are limits that drip.New accepts.
func (s *Set) Options(own *Limits) (o drip.Options, err error) {
	switch {
	case s.Travel < 0:
		return o, errors.New("travel is below 0")
	case s.Preset != "" && own != nil:
		return o, errors.New("a preset gives the limits of an entity: leave out the preset, or limits of your own")
	case s.Preset != "":
		p, err := provider.Named(s.Preset)
		if err != nil {
			return o, err
		}
		if o, err = p.Options(time.Duration(s.Travel)); err != nil {
			return o, err
		}
	case own != nil:
		o = own.options()
	}
	for name, l := range s.Shared {
		if l.Lease != 0 || l.MaxLease != 0 {
			return o, fmt.Errorf("shared limit %q: it has no lease and no max_lease; give them with the limits of the entity", name)
		}
		if o.Shared == nil {
			o.Shared = map[string]drip.Limit{}
		}
		o.Shared[name] = l.limit()
	}
	if _, err := drip.New(o); err != nil {
		return o, fmt.Errorf("limits: %s", inJSON(strings.TrimPrefix(err.Error(), "drip: Options.")))
	}
	return o, nil
}

// inJSON puts the names of JSON in place of the names of drip.Options. It leaves texts in quotes alone.
func inJSON(text string) string {
	return words.ReplaceAllStringFunc(text, func(word string) string { return cmp.Or(names[word], word) })
}

var (
	words = regexp.MustCompile(`"(\\.|[^"\\])*"|\w+`) // a text in quotes is one
	names = map[string]string{
		"Size": "size", "RefreshRate": "rate", "RefreshInterval": "interval", "Align": "align", "Unit": "unit", "Windows": "windows",
		"Concurrency": "concurrency", "WaitForToken": "wait_for_token", "Lease": "lease", "MaxLease": "max_lease", "Shared": "shared",
	}
)

// Limits are the limits of an entity in drip.Options. A zero field is the default of Options.
type Limits struct {
	Size         int            `json:"size"`
	Rate         int            `json:"rate"`
	Interval     Duration       `json:"interval"`
	Align        drip.Alignment `json:"align"`
	Unit         string         `json:"unit"`
	Windows      []Window       `json:"windows"`
	Concurrency  int            `json:"concurrency"`
	WaitForToken Duration       `json:"wait_for_token"`
	Lease        Duration       `json:"lease"`
	MaxLease     Duration       `json:"max_lease"`
}

// Window is a drip.Window.
type Window struct {
	Size     int            `json:"size"`
	Rate     int            `json:"rate"`
	Interval Duration       `json:"interval"`
	Align    drip.Alignment `json:"align"`
	Unit     string         `json:"unit"`
}

func (l *Limits) options() drip.Options {
	o := provider.Options(l.limit())
	o.Lease, o.MaxLease = time.Duration(l.Lease), time.Duration(l.MaxLease)
	return o
}

// limit is the same without leases.
func (l *Limits) limit() drip.Limit {
	out := drip.Limit{
		Size: l.Size, RefreshRate: l.Rate, RefreshInterval: time.Duration(l.Interval), Align: l.Align, Unit: l.Unit,
		Concurrency: l.Concurrency, WaitForToken: time.Duration(l.WaitForToken),
	}
	for _, w := range l.Windows {
		out.Windows = append(out.Windows, drip.Window{
			Size: w.Size, RefreshRate: w.Rate, RefreshInterval: time.Duration(w.Interval), Align: w.Align, Unit: w.Unit,
		})
	}
	return out
}

// Decode decodes JSON in which every field has to be known, and stands once. Its error begins with the name of the text.
func Decode(name string, text []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	if err == nil {
		if _, err = d.Token(); err == io.EOF {
			d = json.NewDecoder(bytes.NewReader(text))
			if err = once(d); err != nil {
				err = fmt.Errorf("%s:%d: %w", name, line(text, d.InputOffset()), err)
			}
			return err
		}
		err = errors.New("there is something behind the end")
	}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		name = fmt.Sprintf("%s:%d", name, line(text, syntax.Offset))
	case errors.As(err, &kind):
		field := kind.Field
		if embedded, rest, ok := strings.Cut(field, "."); ok && embedded != strings.ToLower(embedded) {
			field = rest // the text has no such level
		}
		article := "a "
		if kind.Type == reflect.TypeFor[Duration]() {
			article = "" // the value is the text itself
		} else if strings.ContainsAny(kind.Value[:1], "ao") { // an array, an object
			article = "an "
		}
		err = fmt.Errorf("%s is %s%s; it must be a %s", cmp.Or(field, "it"), article, kind.Value, kindName(kind))
	case err == io.EOF:
		err = errors.New("it is empty")
	case errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("it ends too early")
	}
	return fmt.Errorf("%s: %s", name, strings.TrimPrefix(err.Error(), "json: "))
}

// line is the number of the line at an offset.
func line(text []byte, offset int64) int { return 1 + bytes.Count(text[:offset], []byte("\n")) }

// once reads the next value. It returns an error after the name of a field that the object has already: package json takes
// the last one and says nothing.
func once(d *json.Decoder) error {
	t, err := d.Token()
	if _, nested := t.(json.Delim); !nested {
		return err
	}
	seen := map[json.Token]bool{}
	for d.More() {
		if t == json.Delim('{') {
			field, err := d.Token()
			if err != nil {
				return err
			}
			if seen[field] {
				return fmt.Errorf("the field %q is there twice", field)
			}
			seen[field] = true
		}
		if err := once(d); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

func kindName(e *json.UnmarshalTypeError) string {
	if e.Type == reflect.TypeFor[Duration]() {
		return `duration such as "250ms"`
	}
	if reflect.PointerTo(e.Type).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return "string"
	}
	switch e.Type.Kind().String() {
	case "struct", "map":
		return "{ }"
	case "slice":
		return "list [ ]"
	case "int", "int64", "uint64":
		return "whole number"
	case "float64":
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

// UnmarshalJSON implements json.Unmarshaler. Its error is of a type to which package json adds the name of the field.
func (d *Duration) UnmarshalJSON(text []byte) error {
	var s string
	if json.Unmarshal(text, &s) != nil || d.UnmarshalText([]byte(s)) != nil {
		return &json.UnmarshalTypeError{Value: string(text), Type: reflect.TypeFor[Duration]()}
	}
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(entities.Short(time.Duration(d))), nil }
