package provider

import (
	"strings"
	"testing"
	"time"

	"github.com/drip-go/drip"
)

// The day of Gemini is the provider's.
func TestGeminiDay(t *testing.T) {
	o, err := Gemini(15, 250_000, 1000).Options(time.Second)
	ok(t, err)
	if _, err := drip.New(o); err != nil {
		t.Error(err)
	}
	daily := o.Windows[len(o.Windows)-1]
	if daily.Align.String() != "daily America/Los_Angeles" || daily.Size != 950 || daily.RefreshRate != daily.Size && daily.RefreshRate != 0 {
		t.Errorf("the day is %+v", daily)
	}
}

// Small limits are kept, too.
func TestSmallGemini(t *testing.T) {
	if _, err := Gemini(2, 3, 20).Limit(time.Second); err != nil {
		t.Error(err)
	}
	if _, err := Gemini(2, 1, 20).Limit(time.Second); err == nil || !strings.Contains(err.Error(), "the number is 1") {
		t.Errorf("of one token a minute: %v", err)
	}
}

func TestOpenAI(t *testing.T) {
	o, err := OpenAI(500, 30_000).Options(time.Second)
	ok(t, err)
	if _, err := drip.New(o); err != nil {
		t.Error(err)
	}
	if len(o.Windows) != 1 || o.Unit != "" || o.Windows[0].Unit != Tokens {
		t.Errorf("the windows are %+v and %+v", o.Unit, o.Windows)
	}
}
