package drip

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/drip-go/drip/decision"
)

// Costs is how much an operation takes of named units, such as the input tokens of a language model. The names are
// those in Window.Unit. An operation takes nothing of a unit that it does not name.
type Costs map[string]int

// ErrUnit means that no window of the Options counts the unit. Nothing was decided.
var ErrUnit = errors.New("no window counts this unit")

// units are the names of the units besides calls. The one at i is unit i+1 of package decision.
type units []string

// unitsOf returns the units of all windows. Processes with the same Options have the same units.
func unitsOf(o *Options) (units, error) {
	var all units
	var wrong error
	add := func(limit, unit string) {
		switch {
		case unit == "calls": // else it would limit nothing
			wrong = cmp.Or(wrong, fmt.Errorf("%sUnit is %q; leave it empty to count calls", limit, unit))
		case !utf8.ValidString(unit): // a History could not store it
			wrong = cmp.Or(wrong, fmt.Errorf("%sUnit is %q; it must be valid UTF-8", limit, unit))
		}
		all = append(all, unit)
	}
	addAll := func(limit, first string, windows []Window) {
		add(limit, first)
		for i, w := range windows {
			add(fmt.Sprintf("%sWindows[%d].", limit, i), w.Unit)
		}
	}
	addAll("", o.Unit, o.Windows)
	for _, name := range slices.Sorted(maps.Keys(o.Shared)) {
		l := o.Shared[name]
		addAll(fmt.Sprintf("Shared[%q].", name), l.Unit, l.Windows)
	}
	if wrong != nil {
		return nil, wrong
	}
	slices.Sort(all)
	all = slices.Compact(all)
	if all[0] == "" {
		all = all[1:]
	}
	if len(all) >= decision.Units {
		return nil, fmt.Errorf("%s name %d units: %s; there may be %d besides calls", "Windows and Shared", len(all), strings.Join(all, ", "), decision.Units-1)
	}
	return all, nil
}

func (u units) number(name string) (int64, error) {
	if name == "" {
		return 0, nil
	}
	i := slices.Index(u, name)
	if i < 0 {
		return 0, fmt.Errorf("%w: %q", ErrUnit, name)
	}
	return int64(i) + 1, nil
}

func (u units) name(number int64) string {
	if number < 1 || number > int64(len(u)) {
		return ""
	}
	return u[number-1]
}

// set sets the units of cost that costs names.
func (u units) set(cost *decision.Cost, costs Costs) error {
	for name, n := range costs {
		i, err := u.number(name)
		if err == nil && i == 0 {
			err = fmt.Errorf("%w: it has no name", ErrUnit)
		}
		if err != nil {
			return err
		}
		cost[i] = int64(n)
	}
	return nil
}

// valid returns an error for a cost that nothing can have.
func (u units) valid(of *decision.Cost) error {
	for unit := range of {
		if n := of[unit]; n < 0 || n > decision.MostUnits {
			return fmt.Errorf("%w: %s, which must be from 0 to %d", ErrCost, u.amount(int64(unit), n), int64(decision.MostUnits))
		}
	}
	return nil
}

// affordable returns an error for a cost that a limit never has room for.
func (u units) affordable(op *decision.Op, l *decision.Limits) error {
	if op.Kind != decision.Admit {
		return nil
	}
	for unit := range op.Cost {
		cost := op.Cost[unit]
		if cost <= 1 {
			continue
		}
		if most := l.Most(int64(unit)); cost > most {
			return fmt.Errorf("%w: %s of at most %d", ErrCost, u.amount(int64(unit), cost), most)
		}
	}
	return nil
}

// amount returns a cost in words.
func (u units) amount(unit, cost int64) string {
	if unit == 0 {
		return fmt.Sprint(cost)
	}
	return fmt.Sprint(cost, " ", u.name(unit))
}
