package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// emitter writes functions as statements of Lua. It inlines the functions that they call, but for those the script has as
// functions: Redis runs the whole script anew for each call, and to make a function there takes about as long as to run it.
//
// A number or a bool is a local. So is each field of a struct and each element of an array: Lease.End of the variable a is
// a_Lease_End, and Cost[1] of op is op_Cost_1. The structs of
// a slice are tables in a table, counted from 0. A pointer to one is its table.
type emitter struct {
	info  *types.Info
	funcs map[*types.Func]*ast.FuncDecl

	functions map[*types.Func]*function // of the script
	lines     []string
	names     []string // of the visible locals and of the template's variables
	values    map[types.Object]any
	body      *body
	dirty     bool // an inlined function has changed a struct of its caller
}

// body is the function that is being inlined.
type body struct {
	results []string // the locals that its results go to
	broke   bool     // a return became a break
	done    string   // the local that a return in a loop sets
}

// An expr is an expression of Lua with its precedence there.
type expr struct {
	code string
	prec int
}

const (
	or = iota
	and
	comparison
	sum
	product
	unary
	atom
)

// in is the code as an operand of an operator.
func (x expr) in(prec int) string {
	if x.prec < prec {
		return "(" + x.code + ")"
	}
	return x.code
}

var word = regexp.MustCompile(`^\w+$`)

func (x expr) simple() bool { return word.MatchString(x.code) }

// A place is where a struct is: in locals that begin with prefix, or in a table.
type place struct {
	of            *types.Struct
	prefix, table string
}

func (p place) field(name string) string {
	if p.table != "" {
		return p.table + "." + name
	}
	return p.prefix + "_" + name
}

// flat lists all numbers and bools of the struct.
func (p place) flat() (names []string) {
	for f := range p.of.Fields() {
		if isExternal(f.Type()) || isPointer(f.Type()) {
			continue
		}
		switch t := f.Type().Underlying().(type) {
		case *types.Struct:
			names = append(names, place{of: t, prefix: p.field(f.Name())}.flat()...)
		case *types.Array:
			names = append(names, elements(p.field(f.Name()), t)...)
		case *types.Slice:
			names = append(names, p.field(f.Name()), p.field(f.Name())+"_n")
		default:
			names = append(names, p.field(f.Name()))
		}
	}
	return names
}

// keys are the fields that a table of the struct has, in the order of zeros.
func keys(s *types.Struct) (names []string) {
	for f := range s.Fields() {
		if isExternal(f.Type()) {
			names = append(names, f.Name())
			continue
		}
		one := types.NewStruct([]*types.Var{f}, nil)
		for _, name := range (place{of: one, table: "t"}).flat() {
			names = append(names, strings.TrimPrefix(name, "t."))
		}
	}
	return names
}

// elements are the locals of an array.
func elements(name string, of *types.Array) (names []string) {
	for i := range of.Len() {
		names = append(names, fmt.Sprint(name, "_", i))
	}
	return names
}

func zeros(t types.Type) (codes []string) {
	if isExternal(t) {
		return []string{t.(*types.Named).Obj().Name() + "()"}
	}
	switch u := t.Underlying().(type) {
	case *types.Struct:
		for f := range u.Fields() {
			if isPointer(f.Type()) { // nothing of its own
				continue
			}
			codes = append(codes, zeros(f.Type())...)
		}
		return codes
	case *types.Array:
		return slices.Repeat(zeros(u.Elem()), int(u.Len()))
	case *types.Slice:
		return []string{"nil", "0"} // the first append makes the table
	case *types.Basic:
		if u.Kind() == types.Bool {
			return []string{"false"}
		}
	}
	return []string{"0"}
}

func (e *emitter) fail(n ast.Node, why string) {
	panic(failure{n.Pos(), fmt.Sprintf("%T: %s", n, why)})
}

type failure struct {
	at  token.Pos
	why string
}

func (e *emitter) line(format string, args ...any) {
	e.lines = append(e.lines, fmt.Sprintf(format, args...))
}

// capture returns the lines that f writes, which go nowhere else.
func (e *emitter) capture(f func()) []string {
	outer := e.lines
	e.lines = nil
	f()
	lines := e.lines
	e.lines = outer
	return lines
}

// declare makes a name for a local that no other has.
func (e *emitter) declare(name string) string {
	unique := name
	for n := 2; slices.Contains(e.names, unique) || slices.Contains(keywords, unique); n++ {
		unique = name + strconv.Itoa(n)
	}
	e.names = append(e.names, unique)
	return unique
}

var keywords = strings.Fields("and break do else elseif end false for function if in local nil not or repeat return then true until while")

// local puts a value into a local.
func (e *emitter) local(name string, x expr) expr {
	name = e.declare(name)
	e.line("local %s = %s", name, x.code)
	return expr{name, atom}
}

func (e *emitter) asLocal(name string, x expr) expr {
	if x.simple() {
		return x
	}
	return e.local(name, x)
}

// target is the type that t is or points to.
func target(t types.Type) types.Type {
	if p, ok := t.Underlying().(*types.Pointer); ok {
		return p.Elem()
	}
	return t
}

func structOf(t types.Type) *types.Struct { s, _ := target(t).Underlying().(*types.Struct); return s }

func arrayOf(t types.Type) *types.Array { a, _ := target(t).Underlying().(*types.Array); return a }

func isSlice(t types.Type) bool { _, ok := t.Underlying().(*types.Slice); return ok }

func isPointer(t types.Type) bool { _, ok := t.Underlying().(*types.Pointer); return ok }

// place is where the struct is that x is or points to.
func (e *emitter) place(x ast.Expr) place {
	switch x := x.(type) {
	case *ast.Ident:
		if p, ok := e.values[e.info.ObjectOf(x)].(place); ok {
			return p
		}
	case *ast.ParenExpr:
		return e.place(x.X)
	case *ast.StarExpr:
		return e.place(x.X)
	case *ast.UnaryExpr:
		if x.Op == token.AND {
			return e.place(x.X)
		}
	case *ast.SelectorExpr:
		return place{of: structOf(e.info.TypeOf(x)), prefix: e.place(x.X).field(x.Sel.Name)}
	case *ast.IndexExpr:
		return place{of: structOf(e.info.TypeOf(x)), table: e.slice(x.X) + "[" + e.scalar(x.Index).code + "]"}
	}
	e.fail(x, "no place of a struct")
	return place{}
}

// A table is a slice that is no field.
type table string

// An array is the locals of one that is no field.
type array []string

// array is the locals of the array that x is or points to.
func (e *emitter) array(x ast.Expr) array {
	switch x := x.(type) {
	case *ast.Ident:
		if a, ok := e.values[e.info.ObjectOf(x)].(array); ok {
			return a
		}
	case *ast.UnaryExpr:
		if x.Op == token.AND {
			return e.array(x.X)
		}
	case *ast.SelectorExpr:
		return elements(e.place(x.X).field(x.Sel.Name), arrayOf(e.info.TypeOf(x)))
	case *ast.CompositeLit:
		a := array(zeros(e.info.TypeOf(x)))
		for i, el := range x.Elts {
			a[i] = e.scalar(el).code
		}
		return a
	}
	e.fail(x, "no array that is known")
	return nil
}

// element is one of an array, by a place that is a number or is known when the script runs.
func (e *emitter) element(x *ast.IndexExpr) expr {
	a := e.array(x.X)
	if v := e.info.Types[x.Index].Value; v != nil {
		i, _ := constant.Int64Val(v)
		return expr{a[i], atom}
	}
	i, last := e.asLocal("i", e.scalar(x.Index)), len(a)-1
	code := ""
	for n, name := range a[:last] {
		code += fmt.Sprintf("%s == %d and %s or ", i.code, n, name)
	}
	return expr{code + a[last], or}
}

// slice is the table of a slice.
func (e *emitter) slice(x ast.Expr) string {
	if id, ok := x.(*ast.Ident); ok {
		if t, ok := e.values[e.info.ObjectOf(id)].(table); ok {
			return string(t)
		}
	}
	if s, ok := x.(*ast.SelectorExpr); ok {
		return e.place(s.X).field(s.Sel.Name)
	}
	e.fail(x, "no slice in a struct")
	return ""
}

// flatten is all numbers of a value, in the order of the fields.
func (e *emitter) flatten(x ast.Expr) []string {
	t := e.info.TypeOf(x)
	switch t.Underlying().(type) {
	case *types.Slice:
		if s, ok := x.(*ast.SliceExpr); ok && s.Low == nil && e.scalar(s.High).code == "0" {
			return zeros(t)
		}
		e.fail(x, "a slice is only emptied or appended to")
	case *types.Array:
		return e.array(x)
	case *types.Struct:
		switch x := x.(type) {
		case *ast.CompositeLit:
			return e.composite(x)
		case *ast.CallExpr:
			return e.call(x)
		}
		return e.place(x).flat()
	}
	return []string{e.scalar(x).code}
}

func (e *emitter) composite(x *ast.CompositeLit) (codes []string) {
	s := structOf(e.info.TypeOf(x))
	given := map[string]ast.Expr{}
	for i, el := range x.Elts {
		if kv, ok := el.(*ast.KeyValueExpr); ok {
			given[kv.Key.(*ast.Ident).Name] = kv.Value
		} else {
			given[s.Field(i).Name()] = el
		}
	}
	for f := range s.Fields() {
		if v := given[f.Name()]; v != nil {
			codes = append(codes, e.flatten(v)...)
		} else {
			codes = append(codes, zeros(f.Type())...)
		}
	}
	return codes
}

// scalar is a number or a bool. The statements that must run before it go into lines.
func (e *emitter) scalar(x ast.Expr) expr {
	if v := e.info.Types[x].Value; v != nil {
		return literal(v)
	}
	switch x := x.(type) {
	case *ast.Ident:
		if v, ok := e.values[e.info.ObjectOf(x)].(expr); ok {
			return v
		}
	case *ast.ParenExpr:
		return e.scalar(x.X)
	case *ast.SelectorExpr:
		return expr{e.place(x.X).field(x.Sel.Name), atom}
	case *ast.IndexExpr:
		return e.element(x)
	case *ast.UnaryExpr:
		switch x.Op {
		case token.NOT:
			return expr{"not " + e.scalar(x.X).in(unary), unary}
		case token.SUB:
			return expr{"-" + e.scalar(x.X).in(atom), unary}
		}
	case *ast.BinaryExpr:
		return e.binary(x)
	case *ast.CallExpr:
		if e.info.Types[x.Fun].IsType() {
			return e.scalar(x.Args[0])
		}
		switch name, _ := x.Fun.(*ast.Ident); {
		case name == nil:
		case name.Name == "len":
			return expr{e.slice(x.Args[0]) + "_n", atom}
		case name.Name == "max" || name.Name == "min":
			return e.extreme(name.Name, x.Args)
		}
		return e.callScalar(x)
	}
	e.fail(x, "an expression that is not known")
	return expr{}
}

func literal(v constant.Value) expr {
	code := v.ExactString()
	if strings.HasPrefix(code, "-") {
		return expr{code, unary}
	}
	return expr{code, atom}
}

var operators = map[token.Token]struct {
	lua  string
	prec int
}{
	token.ADD: {"+", sum}, token.SUB: {"-", sum}, token.MUL: {"*", product}, token.REM: {"%", product},
	token.LSS: {"<", comparison}, token.LEQ: {"<=", comparison}, token.GTR: {">", comparison}, token.GEQ: {">=", comparison},
	token.EQL: {"==", comparison}, token.NEQ: {"~=", comparison}, token.LAND: {"and", and}, token.LOR: {"or", or},
}

func (e *emitter) binary(b *ast.BinaryExpr) expr {
	if _, ok := e.info.TypeOf(b.X).Underlying().(*types.Struct); ok {
		return e.compare(b)
	}
	x := e.scalar(b.X)
	var y expr
	dirty := e.dirty
	e.dirty = false
	before := e.capture(func() { y = e.scalar(b.Y) })
	switch {
	case len(before) == 0:
	case b.Op == token.LAND || b.Op == token.LOR:
		t := e.local("is", x)
		if b.Op == token.LAND {
			e.line("if %s then", t.code)
		} else {
			e.line("if not %s then", t.code)
		}
		e.lines = append(e.lines, before...)
		e.line("%s = %s", t.code, y.code)
		e.line("end")
		e.dirty = e.dirty || dirty
		return t
	case e.dirty:
		x = e.local("x", x)
	}
	e.lines = append(e.lines, before...)
	e.dirty = e.dirty || dirty
	if b.Op == token.QUO { // neither is negative
		return e.quotient(x, y)
	}
	op, ok := operators[b.Op]
	if !ok {
		e.fail(b, "an operator that is not known")
	}
	right := op.prec + 1
	if op.prec <= and || b.Op == token.ADD {
		right = op.prec
	}
	return expr{x.in(op.prec) + " " + op.lua + " " + y.in(right), op.prec}
}

func (e *emitter) compare(b *ast.BinaryExpr) expr {
	op, join, prec := "==", " and ", and
	if b.Op == token.NEQ {
		op, join, prec = "~=", " or ", or
	}
	x, y := e.flatten(b.X), e.flatten(b.Y)
	for i := range x {
		x[i] += " " + op + " " + y[i]
	}
	return expr{strings.Join(x, join), prec}
}

// quotient is rounded down: Lua has no integers, but a remainder that is exact.
func (e *emitter) quotient(x, y expr) expr {
	x, y = e.asLocal("x", x), e.asLocal("y", y)
	return expr{fmt.Sprintf("(%s - %s %% %s) / %s", x.code, x.code, y.code, y.code), product}
}

var extremes = map[string]string{"max": ">", "min": "<"}

// extreme is the builtin max or min. A call of Lua's would take longer.
func (e *emitter) extreme(name string, args []ast.Expr) expr {
	op := extremes[name]
	values := make([]expr, len(args))
	for i, a := range args {
		e.dirty = false
		values[i] = e.scalar(a)
		if e.dirty {
			e.fail(a, "an argument changes a struct")
		}
	}
	if len(values) == 2 && values[0].prec == atom && values[1].prec == atom {
		x, y := values[0].code, values[1].code
		return expr{fmt.Sprintf("%s %s %s and %s or %s", x, op, y, x, y), or}
	}
	m := e.local(name, values[0])
	for _, v := range values[1:] {
		e.raise(m.code, op, v)
	}
	return m
}

// raise makes m, a local or a field, v if that is the larger.
func (e *emitter) raise(m, op string, v expr) {
	if v.prec < atom && v.prec != unary {
		v = e.local("x", v)
	}
	e.line("if %s %s %s then %s = %s end", v.code, op, m, m, v.code)
}

func (e *emitter) callScalar(x *ast.CallExpr) expr {
	fn, recv := e.callee(x)
	if r, ok := recv.(external); ok {
		return expr{string(r) + fn.Name() + "(" + strings.Join(e.arguments(x.Args), ", ") + ")", atom}
	}
	if fn.Name() == "floor" { // a division rounded down, as Lua's remainder is already
		e.bind(fn, recv, x.Args)
		of := fn.Signature().Params()
		return e.quotient(e.values[of.At(0)].(expr), e.values[of.At(1)].(expr))
	}
	if b := e.funcs[fn].Body.List; len(b) == 1 && e.functions[fn] == nil {
		if r, ok := b[0].(*ast.ReturnStmt); ok && len(r.Results) == 1 && structOf(e.info.TypeOf(x)) == nil {
			e.bind(fn, recv, x.Args)
			return e.scalar(r.Results[0])
		}
	}
	return expr{e.call(x)[0], atom}
}

// An external is a type with its methods in the template: Leases, and Counts. In front of the methods' names it has the
// name of their table, if there is one.
type external string

func isExternal(t types.Type) bool {
	named, ok := t.(*types.Named)
	return ok && (types.IsInterface(t) || named.Obj().Name() == "Counts")
}

func (e *emitter) external(x ast.Expr) external {
	if s, ok := x.(*ast.SelectorExpr); ok {
		return external(e.place(s.X).field(s.Sel.Name) + ".")
	}
	v, ok := e.values[e.info.ObjectOf(x.(*ast.Ident))].(external)
	if !ok {
		e.fail(x, "methods that are not known")
	}
	return v
}

// callee is the function called, and its receiver: a place, an external, or nil.
func (e *emitter) callee(x *ast.CallExpr) (*types.Func, any) {
	switch f := x.Fun.(type) {
	case *ast.Ident:
		if fn, ok := e.info.Uses[f].(*types.Func); ok {
			return fn, nil
		}
	case *ast.SelectorExpr:
		fn, _ := e.info.Uses[f.Sel].(*types.Func)
		if isExternal(e.info.TypeOf(f.X)) {
			return fn, e.external(f.X)
		}
		if fn != nil {
			return fn, e.place(f.X)
		}
	}
	e.fail(x, "a call that is not known")
	return nil, nil
}

// arguments are the arguments of a function that Lua has: of a struct, all its fields.
func (e *emitter) arguments(args []ast.Expr) (codes []string) {
	for _, a := range args {
		if structOf(e.info.TypeOf(a)) != nil {
			codes = append(codes, e.place(a).flat()...)
		} else {
			codes = append(codes, e.scalar(a).code)
		}
	}
	return codes
}

// bind sets the parameters of a function that will be inlined.
func (e *emitter) bind(fn *types.Func, recv any, args []ast.Expr) {
	decl, sig := e.funcs[fn], fn.Signature()
	if decl == nil {
		panic(failure{fn.Pos(), "not a function of the package: " + fn.Name()})
	}
	pure := e.pure(fn)
	bound := map[types.Object]any{}
	param := func(obj *types.Var, value any) {
		if p, ok := value.(place); ok {
			value = e.pointer(obj.Name(), p)
		}
		bound[obj] = value
	}
	if recv != nil {
		param(sig.Recv(), recv)
	}
	for i, a := range args {
		obj := sig.Params().At(i)
		switch {
		case isExternal(obj.Type()):
			param(obj, e.external(a))
		case isSlice(obj.Type()):
			param(obj, table(e.slice(a)))
		case arrayOf(obj.Type()) != nil:
			param(obj, e.array(a))
		case structOf(obj.Type()) != nil:
			if !isPointer(obj.Type()) {
				e.fail(a, "a struct is passed by value")
			}
			param(obj, e.place(a))
		default:
			x := e.scalar(a)
			_, variable := a.(*ast.Ident)
			constant := e.info.Types[a].Value != nil
			if assigns(e.info, decl.Body, obj) || !constant && (!x.simple() || !pure && !variable) {
				x = e.local(obj.Name(), x)
			}
			param(obj, x)
		}
	}
	maps.Copy(e.values, bound)
	e.dirty = e.dirty || !pure
}

// pointer puts a pointer to a struct of a slice into a local.
func (e *emitter) pointer(name string, p place) place {
	if p.table != "" && !word.MatchString(p.table) {
		p.table = e.local(name, expr{p.table, atom}).code
	}
	return p
}

// assigns tells whether a variable is set.
func assigns(info *types.Info, body ast.Node, obj types.Object) (set bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		for _, l := range assigned(n) {
			id, ok := l.(*ast.Ident)
			set = set || ok && info.ObjectOf(id) == obj
		}
		return true
	})
	return set
}

func assigned(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.AssignStmt:
		return n.Lhs
	case *ast.IncDecStmt:
		return []ast.Expr{n.X}
	}
	return nil
}

// pure tells whether a function changes nothing but its own variables.
func (e *emitter) pure(fn *types.Func) bool {
	pure := true
	ast.Inspect(e.funcs[fn].Body, func(n ast.Node) bool {
		for _, l := range assigned(n) {
			pure = pure && !e.throughPointer(l)
		}
		if c, ok := n.(*ast.CallExpr); ok {
			switch f := c.Fun.(type) {
			case *ast.Ident:
				if fn, ok := e.info.Uses[f].(*types.Func); ok {
					pure = pure && e.pure(fn)
				}
			case *ast.SelectorExpr:
				fn, ok := e.info.Uses[f.Sel].(*types.Func)
				pure = pure && ok && !types.IsInterface(e.info.TypeOf(f.X)) && e.pure(fn)
			}
		}
		return true
	})
	return pure
}

func (e *emitter) throughPointer(x ast.Expr) bool {
	for {
		switch y := x.(type) {
		case *ast.StarExpr:
			return true
		case *ast.SelectorExpr:
			if isPointer(e.info.TypeOf(y.X)) {
				return true
			}
			x = y.X
		case *ast.IndexExpr:
			return true
		default:
			return false
		}
	}
}

// call inlines a function. Its results go to new locals, which it returns.
func (e *emitter) call(x *ast.CallExpr) []string {
	fn, recv := e.callee(x)
	if r, ok := recv.(external); ok {
		e.line("%s%s(%s)", r, fn.Name(), strings.Join(e.arguments(x.Args), ", "))
		return nil
	}
	to := e.result(fn)
	if f := e.functions[fn]; f != nil {
		e.callFunction(f, fn, recv, x.Args, to)
		return to
	}
	lines := e.capture(func() {
		names := len(e.names)
		e.bind(fn, recv, x.Args)
		e.lines = append(e.lines, e.inner(fn, to)...)
		e.names = e.names[:names]
	})
	if slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "local ") }) {
		lines = append(append([]string{"do"}, lines...), "end")
	}
	e.lines = append(e.lines, lines...)
	return to
}

// inner returns the body of a function whose parameters are bound. Its result goes to the locals given.
func (e *emitter) inner(fn *types.Func, to []string) []string {
	if r := fn.Signature().Results(); r.Len() == 1 && r.At(0).Name() != "" {
		if s := structOf(r.At(0).Type()); s != nil {
			e.values[r.At(0)] = placeOf(s, to)
		} else {
			e.values[r.At(0)] = expr{to[0], atom}
		}
	}
	outer := e.body
	e.body = &body{results: to}
	inner := e.capture(func() { e.block(e.funcs[fn].Body.List, true) })
	if e.body.broke {
		inner = append(append([]string{"repeat"}, inner...), "until true")
	}
	e.body = outer
	return inner
}

// placeOf is where a struct with these locals is.
func placeOf(s *types.Struct, locals []string) place {
	return place{of: s, prefix: strings.TrimSuffix(locals[0], "_"+s.Field(0).Name())}
}

// result makes locals for the result of a function.
func (e *emitter) result(fn *types.Func) []string {
	results := fn.Signature().Results()
	switch results.Len() {
	case 0:
		return nil
	case 1:
		return e.variable(cmp.Or(results.At(0).Name(), fn.Name()), results.At(0).Type())
	}
	panic(failure{fn.Pos(), "several results"})
}

// variable makes locals for a value that is zero.
func (e *emitter) variable(name string, t types.Type) []string {
	name = e.declare(name)
	names := []string{name}
	if s := structOf(t); s != nil {
		names = place{of: s, prefix: name}.flat()
	}
	e.line("local %s = %s", strings.Join(names, ", "), strings.Join(zeros(t), ", "))
	return names
}
