package cli

import (
	"flag"
	"io"
	"os"
	"reflect"
	"strings"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/limitjson"
)

type duration = limitjson.Duration

// limits are what --limits tells.
type limits struct {
	limitjson.Limits
	limitjson.Set
}

// limitsFlag is the flag --limits.
type limitsFlag struct{ text string }

func (f *limitsFlag) flags(set *flag.FlagSet) {
	set.StringVar(&f.text, "limits", "", "the limits of the consumers: JSON, or the name of a `file`; see drip help limits")
}

// read returns the limits as drip.New takes them, or nil if there are none.
func (f *limitsFlag) read(t *terminal) (*drip.Options, error) {
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
	if err := limitjson.Decode(name, text, &l); err != nil {
		return nil, usageError{err}
	}
	var own *limitjson.Limits
	if !reflect.ValueOf(l.Limits).IsZero() {
		own = &l.Limits
	}
	o, err := l.Options(own)
	if err != nil {
		return nil, usageError{err}
	}
	if l.Travel > 0 && l.Preset == "" { // only the windows of a preset are computed from it
		return nil, usagef("travel needs a preset")
	}
	return &o, nil
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
