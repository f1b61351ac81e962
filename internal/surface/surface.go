package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/parser"
	"go/printer"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

type surface struct {
	path     string   // from the module's root; "." is the root
	lines    []string // one for each exported identifier, sorted
	bare     []string // identifiers without a doc comment
	examples []string // names of Examples, "" for the package's Example
}

// read reads the packages below root that a user can import: all but commands, examples, benchmarks and internal ones.
// Packages of nested modules are among them.
func read(root string) ([]surface, error) {
	var all []surface
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		name := d.Name()
		if path != root && (name[0] == '.' || slices.Contains([]string{"internal", "cmd", "examples", "benchmarks", "scripts", "testdata"}, name)) {
			return fs.SkipDir
		}
		s, err := readPackage(path)
		if err != nil || s == nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		s.path = filepath.ToSlash(rel)
		all = append(all, *s)
		return err
	})
	return all, err
}

// readPackage returns nil for a folder without a package.
func readPackage(dir string) (*surface, error) {
	p, err := build.ImportDir(dir, 0)
	if _, none := err.(*build.NoGoError); none {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	parse := func(names []string) (files []*ast.File, err error) {
		for _, name := range names {
			f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return nil, err
			}
			files = append(files, f)
		}
		return files, nil
	}
	files, err := parse(p.GoFiles)
	if err != nil {
		return nil, err
	}
	tests, err := parse(append(slices.Clone(p.TestGoFiles), p.XTestGoFiles...))
	if err != nil {
		return nil, err
	}
	s := &surface{}
	for _, e := range doc.Examples(tests...) {
		s.examples = append(s.examples, e.Name)
	}
	pkg, err := doc.NewFromFiles(fset, files, p.Name)
	if err != nil {
		return nil, err
	}
	r := reader{s, fset}
	r.said("package "+p.Name, pkg.Doc)
	r.values("const", pkg.Consts)
	r.values("var", pkg.Vars)
	r.funcs(pkg.Funcs)
	for _, t := range pkg.Types {
		r.typ(t)
	}
	slices.Sort(s.lines)
	slices.Sort(s.examples)
	return s, nil
}

// reader adds to a surface.
type reader struct {
	*surface
	fset *token.FileSet
}

// said notes an identifier that has no doc comment.
func (r reader) said(name string, comments ...string) {
	if strings.TrimSpace(strings.Join(comments, "")) == "" {
		r.bare = append(r.bare, name)
	}
}

func (r reader) values(kind string, groups []*doc.Value) {
	for _, g := range groups {
		var repeated string // what a constant without a value repeats
		for _, spec := range g.Decl.Specs {
			v := spec.(*ast.ValueSpec)
			for i, name := range v.Names {
				text := ""
				switch {
				case v.Type != nil:
					text = " " + r.print(v.Type)
				case i < len(v.Values):
					text = r.valueOf(v.Values[i])
				default:
					text = repeated
				}
				repeated = text
				if !name.IsExported() {
					continue
				}
				r.lines = append(r.lines, kind+" "+name.Name+text)
				r.said(name.Name, g.Doc, v.Doc.Text(), v.Comment.Text())
			}
		}
	}
}

// valueOf is the type of a value, as far as the source says it: the text of an error may change.
func (r reader) valueOf(v ast.Expr) string {
	switch v := v.(type) {
	case *ast.CallExpr:
		if f := r.print(v.Fun); f != "errors.New" && f != "fmt.Errorf" {
			return " = " + f + "(…)"
		}
		return " error"
	case *ast.CompositeLit:
		return " " + r.print(v.Type)
	}
	return " = " + r.print(v)
}

func (r reader) funcs(all []*doc.Func) {
	for _, f := range all {
		r.lines = append(r.lines, r.signature(f.Decl))
		r.said(f.Name, f.Doc)
	}
}

func (r reader) signature(f *ast.FuncDecl) string {
	f.Doc, f.Body = nil, nil
	return r.print(f)
}

func (r reader) typ(t *doc.Type) {
	spec := t.Decl.Specs[0].(*ast.TypeSpec)
	r.said(t.Name, t.Doc, spec.Doc.Text())
	line := "type " + t.Name
	if spec.TypeParams != nil {
		line += "[" + r.fieldList(spec.TypeParams) + "]"
	}
	if spec.Assign.IsValid() {
		line += " ="
	}
	switch of := spec.Type.(type) {
	case *ast.StructType:
		r.lines = append(r.lines, line+" struct")
		r.members(t, "field", of.Fields, of.Incomplete)
	case *ast.InterfaceType:
		r.lines = append(r.lines, line+" interface")
		r.members(t, "interface method", of.Methods, of.Incomplete)
	default:
		r.lines = append(r.lines, line+" "+r.print(of))
	}
	r.values("const", t.Consts)
	r.values("var", t.Vars)
	r.funcs(t.Funcs)
	for _, m := range t.Methods {
		r.lines = append(r.lines, r.signature(m.Decl))
		r.said(t.Name+"."+m.Name, m.Doc)
	}
}

// members adds the exported fields of a struct, or the methods of an interface. A comment may document several of them
// in one line. A comment above a line also documents the lines that follow without a blank one. The comment of the type
// documents each field that it names.
func (r reader) members(t *doc.Type, kind string, list *ast.FieldList, incomplete bool) {
	typ := t.Name
	var above string // the comment of the lines so far
	last := 0
	for _, f := range list.List {
		begin := f.Pos()
		if f.Doc != nil {
			begin = f.Doc.Pos()
		}
		if line := r.fset.Position(begin).Line; line > last+1 {
			above = ""
		}
		last = r.fset.Position(f.End()).Line
		if f.Doc != nil {
			above = f.Doc.Text()
		}
		for _, name := range f.Names {
			if !name.IsExported() {
				continue
			}
			text := r.print(f.Type)
			if kind == "field" {
				text = " " + text
			} else {
				text = strings.TrimPrefix(text, "func")
			}
			r.lines = append(r.lines, fmt.Sprintf("%s %s.%s%s", kind, typ, name.Name, text))
			if regexp.MustCompile(`\b` + name.Name + `\b`).MatchString(t.Doc) {
				continue
			}
			r.said(typ+"."+name.Name, above, f.Comment.Text())
		}
		if len(f.Names) == 0 {
			r.lines = append(r.lines, fmt.Sprintf("%s %s embeds %s", kind, typ, r.print(f.Type)))
		}
	}
	if incomplete {
		r.lines = append(r.lines, fmt.Sprintf("type %s has unexported members", typ))
	}
}

func (r reader) fieldList(l *ast.FieldList) string {
	var parts []string
	for _, f := range l.List {
		for _, n := range f.Names {
			parts = append(parts, n.Name+" "+r.print(f.Type))
		}
	}
	return strings.Join(parts, ", ")
}

func (r reader) print(node any) string {
	var b bytes.Buffer
	if err := printer.Fprint(&b, token.NewFileSet(), node); err != nil {
		panic(err) // it was parsed
	}
	return strings.Join(strings.Fields(b.String()), " ")
}
