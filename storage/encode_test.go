package storage_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"testing"

	"github.com/drip-go/drip/decision"
	"github.com/drip-go/drip/storage"
)

// numbered is a State in which every number is another one, with n lines, and a pin if there are several.
func numbered(n int) (s decision.State) {
	next := int64(0)
	var number func(v reflect.Value)
	number = func(v reflect.Value) {
		for i := range v.NumField() {
			switch f := v.Field(i); f.Kind() {
			case reflect.Int64:
				next++
				f.SetInt(next)
			case reflect.Struct:
				number(f)
			}
		}
	}
	number(reflect.ValueOf(&s).Elem())
	for i := range n {
		s.Lines = append(s.Lines, decision.Line{})
		number(reflect.ValueOf(&s.Lines[i]).Elem())
		s.Lines[i].Window.Unit = int64(i%3) + 1
	}
	if n > 1 {
		s.Pins = []decision.Pinned{{}}
		number(reflect.ValueOf(&s.Pins[0]).Elem())
		s.Pins[0].Limit.Window.Unit, s.Pins[0].Window.Unit, s.Pins[0].Line = 2, 3, 1
	}
	return s
}

// A field that is added to State or Line and forgotten in Encode or Decode comes back as 0 here.
func TestEncode(t *testing.T) {
	extreme := numbered(1)
	extreme.Tokens, extreme.Now, extreme.Lines[0].Left = math.MaxInt64, math.MinInt64, -1
	for _, c := range []struct {
		state  decision.State
		leases []storage.Held
	}{
		{numbered(1), []storage.Held{}},
		{numbered(3), []storage.Held{{ID: 1, End: 2}, {ID: 2, End: 2}, {ID: 1 << 52, End: 1 << 43}}},
		{extreme, []storage.Held{{ID: math.MinInt64, End: math.MaxInt64}}},
	} {
		b := storage.Encode(&c.state, c.leases)
		var got decision.State
		leases, err := storage.Decode(b, &got)
		if err != nil || !reflect.DeepEqual(got, c.state) || !reflect.DeepEqual(leases, c.leases) {
			t.Errorf("Decode(Encode(%+v, %v)) = %+v, %v, %v", c.state, c.leases, got, leases, err)
		}
	}
	if b := storage.Encode(&decision.State{Lines: []decision.Line{}}, nil); b != nil {
		t.Errorf("Encode of an entity that nobody knows = %x, want no bytes", b)
	}
	got := numbered(2)
	if leases, err := storage.Decode(nil, &got); err != nil || leases != nil || !reflect.DeepEqual(got, decision.State{}) {
		t.Errorf("Decode of no bytes = %+v, %v, %v; want the zero State and no leases", got, leases, err)
	}
}

// Decode refuses bytes that are no state of an entity: a decision on it would panic, in a process that did not store it.
func TestImpossibleStates(t *testing.T) {
	for name, spoil := range map[string]func(*decision.State){
		"fewer operations than none":  func(s *decision.State) { s.Ended = -1 },
		"more operations than fit":    func(s *decision.State) { s.Ended = math.MaxInt64 },
		"more than times the tokens":  func(s *decision.State) { s.Ended = decision.Never },
		"a calendar before all":       func(s *decision.State) { s.Calendars[0].Head = math.MinInt64 },
		"a calendar behind all":       func(s *decision.State) { s.Calendars[0].Head = math.MaxInt64 },
		"a window without a rate":     func(s *decision.State) { s.Lines[0].Window.Rate = 0 },
		"a window without a time":     func(s *decision.State) { s.Lines[1].Window.Interval = 0 },
		"a window of a negative size": func(s *decision.State) { s.Lines[1].Window.Size = -1 },
		"used too much, below none":   func(s *decision.State) { s.Lines[0].Over = -1 },
		"estimates below none":        func(s *decision.State) { s.Lines[0].Estimated = -1 },
		"a window above all":          func(s *decision.State) { s.Lines[1].Window.Size = decision.MostUnits + 1 },
		"a pin without a rate":        func(s *decision.State) { s.Pins[0].Limit.Window.Rate = 0 },
		"a raised window of no time":  func(s *decision.State) { s.Pins[0].Window.Interval = -1 },
		"a pin behind the lines":      func(s *decision.State) { s.Pins[0].Line = 3 },
		"a pin before the lines":      func(s *decision.State) { s.Pins[0].Line = -1 },
		"a level below none":          func(s *decision.State) { s.Pins[0].Level.Part = -1 },
		"a level above all":           func(s *decision.State) { s.Pins[0].Level.Part = 1 << 62 },
		"a negative cost":             func(s *decision.State) { s.Calendars[0].Largest = -1 },
	} {
		s := numbered(2)
		s.Calendars = make([]decision.Calendar, 1)
		var got decision.State
		if _, err := storage.Decode(storage.Encode(&s, nil), &got); err != nil {
			t.Fatal(err)
		}
		spoil(&s)
		if _, err := storage.Decode(storage.Encode(&s, nil), &got); !errors.Is(err, storage.ErrFormat) {
			t.Errorf("%s: Decode = %v, want ErrFormat", name, err)
		}
	}
}

// The format is fixed: numbers of eight bytes, the highest first, the fields in the order of their declaration. Lua and SQL
// read it so.
func TestEncodedFormat(t *testing.T) {
	s := numbered(2)
	b := storage.Encode(&s, []storage.Held{{ID: 101, End: 102}})
	fields := int64(reflect.TypeFor[decision.State]().NumField() - 4)
	numbers := fields + 2*19 + 25
	want := []int64{19}
	for i := range fields {
		want = append(want, i+1)
	}
	want = append(want, 2, 1, 0, 0, 0, 0)
	for i := range numbers - fields {
		want = append(want, fields+i+1)
	}
	first := len(want) - 2*19 - 25 // of the numbers of two lines and a pin; a Unit is the sixth of a Window
	want[first+5], want[first+19+5], want[first+38+5], want[first+38+15], want[first+38+9] = 1, 2, 2, 3, 1
	want = append(want, 101, 102)
	for i, w := range want {
		if len(b) < 8*i+8 {
			t.Fatalf("%d bytes, want %d numbers of 8", len(b), len(want))
		}
		if got := int64(binary.BigEndian.Uint64(b[8*i:])); got != w {
			t.Errorf("number %d is %d, want %d", i, got, w)
		}
	}
	if len(b) != 8*len(want) {
		t.Errorf("%d bytes, want %d", len(b), 8*len(want))
	}
}

// A state of an earlier version is one of an unknown entity whose windows begin empty. One of a later version is an error of
// its own. Other bytes are no state.
func TestDecodeOtherVersions(t *testing.T) {
	three := numbered(3)
	b := storage.Encode(&three, []storage.Held{{ID: 1, End: 2}})
	this := binary.BigEndian.Uint64(b)
	for first := uint64(1); first < this; first++ {
		binary.BigEndian.PutUint64(b, first)
		for _, data := range [][]byte{b, b[:8], b[:13]} {
			got := numbered(2)
			leases, err := storage.Decode(data, &got)
			if err != nil || leases != nil {
				t.Fatalf("format %d: %v, %v", first, leases, err)
			}
			l := decision.Limits{Windows: []decision.Window{{Size: 9, Rate: 9, Interval: 1000}}, Tokens: 9, Guess: 1, Lease: 1, MaxLease: 1}
			l.Ready()
			var a decision.Answer
			l.Apply(&got, storage.NewLeases(leases), &decision.Op{Kind: decision.Admit, Cost: decision.Cost{1}}, 1_000_300, &a)
			if a.Delay != 700 || a.Bound != decision.BoundWindow {
				t.Errorf("format %d: %+v; want the next interval", first, a)
			}
		}
	}
	for _, first := range []uint64{this + 1, this + 2, 500} {
		binary.BigEndian.PutUint64(b, first)
		got := numbered(2)
		leases, err := storage.Decode(b, &got)
		if !errors.Is(err, storage.ErrLater) || !errors.Is(err, storage.ErrFormat) || leases != nil || !reflect.DeepEqual(got, numbered(2)) {
			t.Errorf("format %d: %+v, %v, %v; want ErrLater", first, got, leases, err)
		}
	}
	for _, first := range []uint64{0, 1 << 56, math.MaxUint64, 1 << 63} {
		binary.BigEndian.PutUint64(b, first)
		if _, err := storage.Decode(b, new(decision.State)); !errors.Is(err, storage.ErrFormat) || errors.Is(err, storage.ErrLater) {
			t.Errorf("%x: %v, want ErrFormat", first, err)
		}
	}
}

// FuzzDecode checks that Decode accepts only results of Encode, and states of earlier versions, and leaves the State alone otherwise.
func FuzzDecode(f *testing.F) {
	one, three := numbered(1), numbered(3)
	f.Add([]byte{})
	f.Add([]byte{2, 0, 0, 0})
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 2})
	f.Add(storage.Encode(&one, nil))
	f.Add(storage.Encode(&three, []storage.Held{{ID: 1, End: 2}, {ID: 3, End: 4}}))
	f.Add(make([]byte, 8*16))
	nobody := storage.Encode(&one, nil)
	clear(nobody[8:16])
	f.Add(nobody)
	pins := storage.Encode(&three, nil)
	f.Add(pins)
	for _, lines := range []uint64{2, 1 << 40, 1 << 63, math.MaxUint64} { // more than there are bytes for
		b := storage.Encode(&one, nil)
		binary.BigEndian.PutUint64(b[8*(reflect.TypeFor[decision.State]().NumField()-3):], lines)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := numbered(2)
		given := bytes.Clone(b)
		leases, err := storage.Decode(b, &s)
		if !bytes.Equal(b, given) {
			t.Fatal("Decode changed its argument")
		}
		if err != nil {
			if !errors.Is(err, storage.ErrFormat) || leases != nil || !reflect.DeepEqual(s, numbered(2)) {
				t.Fatalf("Decode failed with %v and left %+v and %v, want ErrFormat and nothing changed", err, s, leases)
			}
			return
		}
		if need := 64*len(s.Lines) + 16*len(leases); need > len(b) {
			t.Fatalf("Decode made %d bytes of %d", need, len(b))
		}
		if first := binary.BigEndian.Uint64(append(b, make([]byte, 8)...)); first > 0 && first < binary.BigEndian.Uint64(storage.Encode(&one, nil)) {
			if s.Tokens != 0 || len(s.Lines)+len(leases) > 0 {
				t.Fatalf("Decode of an earlier version's bytes made %+v, %v", s, leases)
			}
		} else if again := storage.Encode(&s, leases); !bytes.Equal(again, b) {
			t.Fatalf("Encode(Decode(%x)) = %x", b, again)
		}
	})
}
