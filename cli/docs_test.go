package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

// docs/cli.md names every command, flag, exit status and field of JSON.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../docs/cli.md")
	ok(t, err)
	var names []string
	for _, d := range directory() {
		if d.name != "version" {
			names = append(names, d.name)
		}
		names = append(names, d.flagNames()...)
	}
	for _, status := range []int{statusOK, statusFailure, statusUsage, statusNoAnswer, statusNo, statusInterrupted} {
		names = append(names, fmt.Sprintf("\n| %d |", status))
	}
	for _, v := range []any{entityJSON{}, overallJSON{}, changeJSON{}, manyJSON{}, queuesJSON{}, lettersJSON{}, requeueJSON{}} {
		for _, field := range jsonFields(reflect.TypeOf(v)) {
			names = append(names, "`"+field+"`")
		}
	}
	for _, field := range jsonFields(reflect.TypeFor[limits]()) {
		names = append(names, `"`+field+`"`)
	}
	var report struct{ Results []map[string]any }
	if err := json.Unmarshal([]byte(must(t, "simulate", "testdata/sale.json", "--json")), &report); err != nil || len(report.Results) == 0 {
		t.Fatal(report, err)
	}
	for field := range report.Results[0] {
		names = append(names, "`"+field+"`")
	}
	for _, name := range names {
		if !strings.Contains(string(text), name) {
			t.Errorf("it does not name %q", name)
		}
	}
}

// jsonFields are the names of all fields of a type and of those in them.
func jsonFields(of reflect.Type) (names []string) {
	for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || of == reflect.TypeFor[moment]() {
		return nil
	}
	for i := range of.NumField() {
		f := of.Field(i)
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(append(names, name), jsonFields(f.Type)...)
		} else if f.Anonymous {
			names = append(names, jsonFields(f.Type)...)
		}
	}
	return names
}
