package main

import (
	"go/ast"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strings"
)

// block writes statements. If tail is set, the function ends behind them.
func (e *emitter) block(list []ast.Stmt, tail bool) {
	names := len(e.names)
	defer func() { e.names = e.names[:names] }()
	for i, s := range list {
		rest := list[i+1:]
		if c, ok := s.(*ast.IfStmt); ok && tail && len(rest) > 0 && c.Init == nil && c.Else == nil && returns(c.Body) {
			e.conditional(e.scalar(c.Cond), c.Body.List, func() { e.block(rest, true) }, true)
			return
		}
		if isLoop(s) && hasReturn(s) {
			if !tail {
				e.fail(s, "it returns from a loop, and more comes behind")
			}
			outer := e.body.done
			e.body.done = e.declare("done")
			e.line("local %s", e.body.done)
			e.statement(s, false)
			done := e.body.done
			e.body.done = outer
			if len(rest) > 0 {
				e.line("if not %s then", done)
				e.block(rest, true)
				e.line("end")
			}
			return
		}
		e.statement(s, tail && len(rest) == 0)
	}
}

// conditional writes an if. The lines of otherwise may become an elseif.
func (e *emitter) conditional(cond expr, then []ast.Stmt, otherwise func(), tail bool) {
	e.line("if %s then", cond.code)
	e.block(then, tail)
	if otherwise != nil {
		lines := e.capture(otherwise)
		last := len(lines) - 1
		if last > 0 && strings.HasPrefix(lines[0], "if ") && strings.HasSuffix(lines[0], " then") && closes(lines) == last {
			lines[0] = "else" + lines[0]
			e.lines = append(e.lines, lines[:last]...)
		} else if last >= 0 {
			e.line("else")
			e.lines = append(e.lines, lines...)
		}
	}
	e.line("end")
}

// closes is the line that ends what the first one begins.
func closes(lines []string) int {
	depth := 0
	for i, l := range lines {
		if depth += opens(l) - ends(l); depth == 0 {
			return i
		}
	}
	return len(lines)
}

func opens(l string) int {
	l, _, _ = strings.Cut(l, " --")
	first, _, _ := strings.Cut(l, " ")
	switch {
	case strings.HasSuffix(l, " end"):
		return 0
	case first == "if", first == "for", first == "while", l == "do", l == "repeat", first == "else", first == "elseif":
		return 1
	case strings.HasPrefix(l, "function ") || strings.Contains(l, "= function("):
		return 1
	}
	return 0
}

func ends(l string) int {
	switch first, _, _ := strings.Cut(l, " "); first {
	case "end", "until", "else", "elseif":
		return 1
	}
	return 0
}

var copies = regexp.MustCompile(`^local \w+(, \w+)* = \w+\.\w+(, \w+\.\w+)*$`)

// prune removes the copies of fields that no line of their block reads: each takes time, and one of the few locals.
func prune(lines []string) (pruned []string) {
	for i, l := range lines {
		if copies.MatchString(l) {
			names, fields, _ := strings.Cut(strings.TrimPrefix(l, "local "), " = ")
			read := blockOf(lines[i+1:])
			var kept, from []string
			for j, name := range strings.Split(names, ", ") {
				if regexp.MustCompile(`\b` + name + `\b`).MatchString(read) {
					kept, from = append(kept, name), append(from, strings.Split(fields, ", ")[j])
				}
			}
			if len(kept) == 0 {
				continue
			}
			l = "local " + strings.Join(kept, ", ") + " = " + strings.Join(from, ", ")
		}
		pruned = append(pruned, l)
	}
	return pruned
}

// blockOf is the text of the lines until the end of their block.
func blockOf(lines []string) string {
	depth := 0
	for i, l := range lines {
		if depth -= ends(l); depth < 0 {
			return strings.Join(lines[:i], "\n")
		}
		depth += opens(l)
	}
	return strings.Join(lines, "\n")
}

func indent(lines []string, depth int) string {
	var b strings.Builder
	for _, l := range lines {
		depth -= ends(l)
		b.WriteString(strings.Repeat("  ", depth) + l + "\n")
		depth += opens(l)
	}
	return b.String()
}

func returns(b *ast.BlockStmt) bool {
	if len(b.List) == 0 {
		return false
	}
	_, ok := b.List[len(b.List)-1].(*ast.ReturnStmt)
	return ok
}

func isLoop(s ast.Stmt) bool {
	switch s.(type) {
	case *ast.ForStmt, *ast.RangeStmt:
		return true
	}
	return false
}

func hasReturn(s ast.Stmt) (has bool) {
	ast.Inspect(s, func(n ast.Node) bool {
		_, ok := n.(*ast.ReturnStmt)
		has = has || ok
		return true
	})
	return has
}

func (e *emitter) statement(s ast.Stmt, tail bool) {
	switch s := s.(type) {
	case *ast.AssignStmt:
		e.assign(s)
	case *ast.IncDecStmt:
		x := e.target(s.X)
		e.line("%s = %s %s 1", x, x, s.Tok.String()[:1])
	case *ast.ExprStmt:
		e.call(s.X.(*ast.CallExpr))
	case *ast.ReturnStmt:
		e.giveBack(s, tail)
	case *ast.BlockStmt:
		e.line("do")
		e.block(s.List, tail)
		e.line("end")
	case *ast.IfStmt:
		if s.Init != nil {
			e.line("do")
			names := len(e.names)
			e.statement(s.Init, false)
			plain := *s
			plain.Init = nil
			e.statement(&plain, tail)
			e.names = e.names[:names]
			e.line("end")
			return
		}
		var otherwise func()
		switch other := s.Else.(type) {
		case *ast.BlockStmt:
			otherwise = func() { e.block(other.List, tail) }
		case *ast.IfStmt:
			otherwise = func() { e.block([]ast.Stmt{other}, tail) }
		}
		e.conditional(e.scalar(s.Cond), s.Body.List, otherwise, tail)
	case *ast.SwitchStmt:
		if s.Init != nil || s.Tag == nil {
			e.fail(s, "a switch without a number")
		}
		e.cases(e.asLocal("tag", e.scalar(s.Tag)), s.Body.List, tail)
	case *ast.RangeStmt:
		if s.Value != nil || s.Key == nil {
			e.fail(s, "loops have an index, and no value")
		}
		names := len(e.names)
		var n string
		if isSlice(e.info.TypeOf(s.X)) {
			n = e.slice(s.X) + "_n"
		} else {
			n = e.scalar(s.X).in(sum)
		}
		i := e.declare(s.Key.(*ast.Ident).Name)
		e.values[e.info.ObjectOf(s.Key.(*ast.Ident))] = expr{i, atom}
		e.line("for %s = 0, %s - 1 do", i, n)
		e.block(s.Body.List, false)
		e.line("end")
		e.names = e.names[:names]
	case *ast.ForStmt:
		if s.Init != nil || s.Post != nil || s.Cond == nil {
			e.fail(s, "a loop has a condition only")
		}
		var cond expr
		if before := e.capture(func() { cond = e.scalar(s.Cond) }); len(before) > 0 {
			e.fail(s, "the condition of a loop is no simple one")
		}
		e.line("while %s do", cond.code)
		e.block(s.Body.List, false)
		e.line("end")
	default:
		e.fail(s, "a statement that is not known")
	}
}

func (e *emitter) cases(tag expr, list []ast.Stmt, tail bool) {
	c := list[0].(*ast.CaseClause)
	if c.List == nil {
		if len(list) > 1 {
			e.fail(c, "default is not the last case")
		}
		e.block(c.Body, tail)
		return
	}
	var conds []string
	for _, v := range c.List {
		conds = append(conds, tag.code+" == "+e.scalar(v).in(sum))
	}
	var otherwise func()
	if len(list) > 1 {
		otherwise = func() { e.cases(tag, list[1:], tail) }
	}
	e.conditional(expr{strings.Join(conds, " or "), or}, c.Body, otherwise, tail)
}

func (e *emitter) giveBack(s *ast.ReturnStmt, tail bool) {
	if len(s.Results) == 1 && e.body.results != nil {
		if values := e.flatten(s.Results[0]); !slices.Equal(values, e.body.results) {
			e.line("%s = %s", strings.Join(e.body.results, ", "), strings.Join(values, ", "))
		}
	} else if len(s.Results) > 1 {
		e.fail(s, "several results")
	}
	switch {
	case e.body.done != "":
		e.line("%s = true", e.body.done)
		e.line("break")
	case !tail:
		e.line("break")
		e.body.broke = true
	}
}

func (e *emitter) assign(s *ast.AssignStmt) {
	switch s.Tok {
	case token.DEFINE:
		e.define(s)
		return
	case token.ASSIGN:
	default: // += and the like
		op := operators[s.Tok-(token.ADD_ASSIGN-token.ADD)]
		if op.lua == "" {
			e.fail(s, "an operator that is not known")
		}
		y := e.scalar(s.Rhs[0])
		x := e.target(s.Lhs[0])
		e.line("%s = %s %s %s", x, x, op.lua, y.in(op.prec+1))
		return
	}
	if len(s.Lhs) == 1 {
		if r, ok := s.Rhs[0].(*ast.SliceExpr); ok && r.Low == nil && types.ExprString(r.X) == types.ExprString(s.Lhs[0]) {
			n := e.slice(s.Lhs[0]) + "_n"
			if high := e.scalar(r.High).code; high != "0" { // what is behind is not looked at any more
				e.line("%s = %s", n, high)
				return
			}
		}
		if c, ok := s.Rhs[0].(*ast.CallExpr); ok {
			if f, ok := c.Fun.(*ast.Ident); ok && e.builtin(f, s.Lhs[0], c) {
				return
			}
		}
	}
	var values, targets []string
	for _, r := range s.Rhs {
		values = append(values, e.flatten(r)...)
	}
	for _, l := range s.Lhs {
		switch {
		case structOf(e.info.TypeOf(l)) != nil && !isPointer(e.info.TypeOf(l)):
			targets = append(targets, e.place(l).flat()...)
		case arrayOf(e.info.TypeOf(l)) != nil:
			targets = append(targets, e.array(l)...)
		case isSlice(e.info.TypeOf(l)):
			targets = append(targets, e.slice(l), e.slice(l)+"_n")
		default:
			targets = append(targets, e.target(l))
		}
	}
	if len(targets) > 3 && inTurn(targets, values) {
		for i := range targets {
			e.line("%s = %s", targets[i], values[i])
		}
		return
	}
	e.line("%s = %s", strings.Join(targets, ", "), strings.Join(values, ", "))
}

// target returns a scalar that can be set. An element of a small array at an index that varies cannot: it has no place of its own.
func (e *emitter) target(x ast.Expr) string {
	code := e.scalar(x).code
	if strings.Contains(code, " ") {
		e.fail(x, "an assignment to an element at an index that is no constant")
	}
	return code
}

// inTurn reports whether an assignment to many targets may be made one by one, which takes fewer registers: no value may read a
// field that is set before.
func inTurn(targets, values []string) bool {
	for i, t := range targets {
		field := regexp.MustCompile(`\b` + t[strings.LastIndexByte(t, '.')+1:] + `\b`)
		if slices.ContainsFunc(values[i+1:], field.MatchString) {
			return false
		}
	}
	return true
}

// builtin writes x = max(x, …), x = min(x, …) and x = append(x, …) in their own ways.
func (e *emitter) builtin(f *ast.Ident, x ast.Expr, c *ast.CallExpr) bool {
	switch f.Name {
	case "append":
		table := e.slice(x)
		of := structOf(e.info.TypeOf(c.Args[1]))
		values := e.flatten(c.Args[1])
		for i, key := range keys(of) {
			values[i] = key + " = " + values[i]
		}
		e.line("if %s_n == 0 then %s = {} end", table, table)
		e.line("%s[%s_n] = {%s}", table, table, strings.Join(values, ", "))
		e.line("%s_n = %s_n + 1", table, table)
		return true
	case "max", "min":
		if types.ExprString(x) != types.ExprString(c.Args[0]) {
			return false
		}
		m := e.target(x)
		for _, a := range c.Args[1:] {
			e.raise(m, extremes[f.Name], e.scalar(a))
		}
		return true
	}
	return false
}

// define writes x := y. A pointer is no variable of its own.
func (e *emitter) define(s *ast.AssignStmt) {
	if len(s.Lhs) != len(s.Rhs) {
		e.fail(s, "several results")
	}
	for i, l := range s.Lhs { // one by one: what a later one is made of is no variable before it
		id := l.(*ast.Ident)
		obj := e.info.Defs[id]
		if obj == nil {
			e.fail(s, id.Name+" is known already")
		}
		t, r := obj.Type(), s.Rhs[i]
		switch {
		case isPointer(t):
			e.values[obj] = e.pointer(id.Name, e.place(r))
		case structOf(t) != nil:
			if c, ok := r.(*ast.CallExpr); ok {
				e.values[obj] = placeOf(structOf(t), e.call(c))
				break
			}
			values := e.flatten(r)
			p := place{of: structOf(t), prefix: e.declare(id.Name)}
			e.line("local %s = %s", strings.Join(p.flat(), ", "), strings.Join(values, ", "))
			e.values[obj] = p
		default:
			e.values[obj] = e.local(id.Name, e.scalar(r))
		}
	}
}
