package cli

import (
	"flag"
	"io"
	"os"
	"strings"

	"github.com/drip-go/drip"
	"github.com/drip-go/drip/internal/limitjson"
	"github.com/drip-go/drip/storage"
)

type (
	limits   = limitjson.Limits
	duration = limitjson.Duration
)

// bucketOf is a bucket with these limits.
func bucketOf(l *limits, s storage.Storage) (*drip.Bucket, error) {
	b, err := drip.New(l.Options(s))
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
	if err := limitjson.Decode(name, text, &l); err != nil {
		return nil, usageError{err}
	}
	_, err := bucketOf(&l, nil) // they are possible
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
