// Prose lists the sentences that are hard to read: long ones, and those with a headless clause as their subject.
//
//	go run ./scripts/prose            the Markdown files of this folder and those below
//	go run ./scripts/prose -go        the comments and texts of Go files, too
//	go run ./scripts/prose README.md  one file or folder
//
// It is a help for writers, not a check: it fails only if a file cannot be read. The last line has the counts.
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// longest is how many words a sentence may have.
const longest = 30

// A rule finds one kind of hard sentence.
var rules = []struct {
	name  string
	finds func(sentence string) bool
}{
	{"long", func(s string) bool { return len(strings.Fields(s)) > longest }},
	{"opening", func(s string) bool { return opening.MatchString(s) && !strings.HasSuffix(s, "?") }},
	{"headless", func(s string) bool { return headless.MatchString(s) && !strings.HasSuffix(s, "?") }},
}

var (
	opening  = regexp.MustCompile(`^(Who|Whoever|What|Whatever|Those who|That of|Those of|Nothing of|Of what|To what|For those|Once too) `)
	headless = regexp.MustCompile(`\w[^.]*\b(to him who|those (who|of|that)|that of|of what|by what|than what|what (is|was|has|had|comes|came|waits|runs|may|they|it|drip|you|providers?)) `)
)

// sentence is a sentence and its place.
type sentence struct {
	file string
	line int
	text string
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("prose: ")
	code := flag.Bool("go", false, "read the comments and texts of Go files, too")
	flag.Parse()
	roots := flag.Args()
	if len(roots) == 0 {
		roots = []string{"."}
	}
	var all []sentence
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				if err == nil && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
					return fs.SkipDir
				}
				return err
			}
			var found []sentence
			switch {
			case filepath.Ext(path) == ".md":
				found, err = markdown(path)
			case filepath.Ext(path) == ".go" && *code:
				found, err = goFile(path)
			}
			all = append(all, found...)
			return err
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	counts := map[string]int{}
	for _, s := range all {
		for _, r := range rules {
			if r.finds(s.text) {
				counts[r.name]++
				fmt.Printf("%s:%d: %s (%d words): %s\n", s.file, s.line, r.name, len(strings.Fields(s.text)), s.text)
			}
		}
	}
	fmt.Printf("%d sentences: %d long, %d with a warned opening, %d with a headless clause inside\n",
		len(all), counts["long"], counts["opening"], counts["headless"])
}

// markdown returns the sentences of a page: of its paragraphs, its lists and the cells of its tables, not of its code.
func markdown(path string) ([]sentence, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var found []sentence
	var paragraph []string
	begin, fenced := 0, false
	end := func() {
		found = append(found, sentences(path, begin, strings.Join(paragraph, " "))...)
		paragraph = nil
	}
	add := func(line int, text string) {
		if len(paragraph) == 0 {
			begin = line
		}
		paragraph = append(paragraph, text)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		bare := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(bare, "```"):
			fenced = !fenced
			end()
		case fenced, strings.HasPrefix(line, "    ") && len(paragraph) == 0, strings.HasPrefix(bare, "<"):
		case bare == "", strings.HasPrefix(bare, "#"), strings.HasPrefix(bare, "!["):
			end()
		case strings.HasPrefix(bare, "|"):
			end()
			for cell := range strings.SplitSeq(strings.Trim(bare, "|"), "|") {
				found = append(found, sentences(path, n, strings.TrimSpace(cell))...)
			}
		case listItem.MatchString(bare):
			end()
			add(n, listItem.ReplaceAllString(bare, ""))
		default:
			add(n, bare)
		}
	}
	end()
	return found, nil
}

var (
	listItem = regexp.MustCompile(`^([-*]|\d+\.) `)
	link     = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	stop     = regexp.MustCompile(`[.?!:]["')*]*\s+`)
	letter   = regexp.MustCompile(`[A-Za-z]`)
)

// sentences cuts a text. A colon ends one, too: what follows it can be read alone.
func sentences(file string, line int, text string) []sentence {
	text = link.ReplaceAllString(text, "$1")
	var found []sentence
	for len(text) > 0 {
		cut := len(text)
		for _, at := range stop.FindAllStringIndex(text, -1) {
			before := text[:at[0]]
			if strings.HasSuffix(before, "e.g") || strings.HasSuffix(before, "i.e") || strings.HasSuffix(before, "vs") {
				continue
			}
			cut = at[1]
			break
		}
		if s := strings.TrimSpace(text[:cut]); letter.MatchString(s) {
			found = append(found, sentence{file, line, s})
		}
		text = text[cut:]
	}
	return found
}

// goFile returns the sentences of the comments, and of the texts of four words and more, outside of tests' texts.
func goFile(path string) ([]sentence, error) {
	files := token.NewFileSet()
	f, err := parser.ParseFile(files, path, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	var found []sentence
	for _, group := range f.Comments {
		line := files.Position(group.Pos()).Line
		for paragraph := range strings.SplitSeq(group.Text(), "\n\n") {
			if strings.HasPrefix(paragraph, "Output:") { // of an example
				break
			}
			if !strings.HasPrefix(paragraph, "\t") {
				found = append(found, sentences(path, line, strings.Join(strings.Fields(paragraph), " "))...)
			}
		}
	}
	if strings.HasSuffix(path, "_test.go") {
		return found, nil
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if text, err := strconv.Unquote(l.Value); err == nil && !strings.Contains(text, "\n") && len(strings.Fields(text)) > 3 {
				found = append(found, sentences(path, files.Position(l.Pos()).Line, text)...)
			}
		}
		return true
	})
	return found, nil
}
