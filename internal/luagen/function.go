package main

import (
	"go/ast"
	"go/types"
	"regexp"
	"slices"
	"strings"
)

// A function is a method that is a function in Lua, too. Its parameters are the numbers that it uses of the parameters in
// Go. It returns its result, and the numbers of structs that it may have changed.
type function struct {
	name   string
	params []param
}

// param is a parameter in Go: which of its numbers the function uses, and which it may change. A struct that is always in a
// table of its own is passed as this table.
type param struct{ used, set []int }

// tables are the structs that are in tables of their own wherever a function gets them.
var tables = []string{"Shared", "Flow", "Line", "Calendar"}

func isTable(t types.Type) bool {
	return isPointer(t) && slices.Contains(tables, nameOf(t))
}

func (e *emitter) function(fn *types.Func) []string {
	f := &function{name: nameOf(fn.Signature().Recv().Type()) + "_" + fn.Name()}
	params := variables(fn)
	for _, v := range params {
		if isTable(v.Type()) {
			e.values[v] = place{of: structOf(v.Type()), table: v.Name()}
		}
	}
	var args, results []string
	lines := prune(e.capture(func() {
		results = e.result(fn)
		e.lines = append(e.lines, e.inner(fn, results)...)
	}))
	text := strings.Join(lines, "\n")
	for _, v := range params {
		var p param
		for i, name := range e.numbers(v) {
			if regexp.MustCompile(`\b` + name + `\b`).MatchString(text) {
				p.used, args = append(p.used, i), append(args, name)
			}
			if isPointer(v.Type()) && regexp.MustCompile(`(?m)^(\w+, )*`+name+`(, \w+)* = |then `+name+` = `).MatchString(text) {
				p.set, results = append(p.set, i), append(results, name)
			}
		}
		f.params = append(f.params, p)
	}
	lines = append([]string{"function " + f.name + "(" + strings.Join(args, ", ") + ")"}, lines...)
	if len(results) > 0 {
		lines = append(lines, "return "+strings.Join(results, ", "))
	}
	e.functions[fn] = f
	return append(lines, "end")
}

// numbers are the names of all numbers in a parameter.
func (e *emitter) numbers(v *types.Var) []string {
	switch value := e.values[v].(type) {
	case place:
		if value.table != "" {
			return []string{value.table}
		}
		return value.flat()
	case array:
		return value
	case table:
		return []string{string(value), string(value) + "_n"}
	case expr:
		return []string{value.code}
	}
	panic(failure{v.Pos(), "a parameter that no function of Lua has"})
}

// callFunction writes the call of a function of Lua. Its result goes to the locals given.
func (e *emitter) callFunction(f *function, fn *types.Func, recv any, args []ast.Expr, to []string) {
	var given []string
	targets := slices.Clone(to)
	for i, v := range variables(fn) {
		var names []string
		if recv != nil && i == 0 {
			names = e.given(v, recv.(place))
		} else {
			names = e.argument(v, args[i-len(f.params)+len(args)])
		}
		for _, n := range f.params[i].used {
			given = append(given, names[n])
		}
		for _, n := range f.params[i].set {
			targets = append(targets, names[n])
		}
	}
	e.dirty = e.dirty || !e.pure(fn)
	call := f.name + "(" + strings.Join(given, ", ") + ")"
	if len(targets) > 0 {
		call = strings.Join(targets, ", ") + " = " + call
	}
	e.line("%s", call)
}

// argument are the numbers of an argument for a parameter in Go.
func (e *emitter) argument(v *types.Var, a ast.Expr) []string {
	switch {
	case structOf(v.Type()) != nil:
		return e.given(v, e.place(a))
	case arrayOf(v.Type()) != nil:
		return e.array(a)
	case isSlice(v.Type()):
		return []string{e.slice(a), e.slice(a) + "_n"}
	}
	return []string{e.scalar(a).code}
}

// given are the numbers of a struct that a function gets, or its table.
func (e *emitter) given(v *types.Var, p place) []string {
	p = e.pointer(v.Name(), p)
	switch {
	case !isTable(v.Type()):
		return p.flat()
	case p.table == "":
		panic(failure{v.Pos(), "this struct is in no table"})
	}
	return []string{p.table}
}
