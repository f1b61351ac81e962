// Surface prints what users can import: how many identifiers each package exports.
//
//	go run ./internal/surface                  the numbers
//	go run ./internal/surface -w               write the identifiers to internal/surface/api, a file for each package
//	go run ./internal/surface -check           print in what they differ from those files; nothing if they agree
//	go run ./internal/surface -against v1.0.0  print what the files have lost since a tag; nothing if that is nothing
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// folder holds the files of the surface.
const folder = "internal/surface/api"

func main() {
	log.SetFlags(0)
	write := flag.Bool("w", false, "write the files")
	check := flag.Bool("check", false, "compare with the files")
	against := flag.String("against", "", "compare the files with the files of a `tag`")
	flag.Parse()
	var err error
	switch {
	case *write:
		err = writeFiles(".")
	case *check:
		err = printDifference(".")
	case *against != "":
		err = printLost(*against)
	default:
		err = printNumbers(os.Stdout, ".")
	}
	if err != nil {
		log.Fatal(err)
	}
}

func printNumbers(w io.Writer, root string) error {
	all, err := read(root)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "names\tmethods\tfields\tExamples\t  package")
	var sum surface
	for _, s := range all {
		fmt.Fprintf(t, "%d\t%d\t%d\t%d\t  %s\n", s.names, s.methods, s.fields, len(s.examples), s.path)
		sum.names, sum.methods, sum.fields = sum.names+s.names, sum.methods+s.methods, sum.fields+s.fields
		sum.examples = append(sum.examples, s.examples...)
	}
	fmt.Fprintf(t, "%d\t%d\t%d\t%d\t  all\n", sum.names, sum.methods, sum.fields, len(sum.examples))
	return t.Flush()
}

// fileOf is the name of a package's file.
func fileOf(path string) string {
	if path == "." {
		path = "drip"
	}
	return strings.ReplaceAll(path, "/", "-") + ".txt"
}

func (s surface) text() string { return strings.Join(s.lines, "\n") + "\n" }

func writeFiles(root string) error {
	all, err := read(root)
	if err != nil {
		return err
	}
	dir := filepath.Join(root, folder)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	for _, s := range all {
		if err := os.WriteFile(filepath.Join(dir, fileOf(s.path)), []byte(s.text()), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// difference is the lines that only the files or only the packages have: "-" for a line that only a file has.
func difference(root string) ([]string, error) {
	all, err := read(root)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(root, folder)
	files, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, s := range all {
		name := filepath.Join(dir, fileOf(s.path))
		files = slices.DeleteFunc(files, func(f string) bool { return f == name })
		text, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		lost, added := compare(strings.Split(string(text), "\n"), append(s.lines, ""))
		for _, l := range lost {
			out = append(out, s.path+": -"+l)
		}
		for _, l := range added {
			out = append(out, s.path+": +"+l)
		}
	}
	for _, f := range files {
		out = append(out, "-"+f+": there is no such package")
	}
	return out, nil
}

// compare returns the lines that only one of the two has.
func compare(before, after []string) (lost, added []string) {
	for _, l := range before {
		if !slices.Contains(after, l) {
			lost = append(lost, l)
		}
	}
	for _, l := range after {
		if !slices.Contains(before, l) {
			added = append(added, l)
		}
	}
	return lost, added
}

const howToUpdate = "the exported surface has changed: go run ./internal/surface -w, and say so in CHANGELOG.md"

func printDifference(root string) error {
	lines, err := difference(root)
	if err != nil || len(lines) == 0 {
		return err
	}
	fmt.Println(strings.Join(lines, "\n"))
	return errors.New(howToUpdate)
}

// printLost compares the files with the files of a tag. A line that is gone breaks users; a new line does not.
func printLost(tag string) error {
	files, err := git("ls-tree", "-r", "--name-only", tag, folder)
	if err != nil {
		return err
	}
	var out []string
	for _, name := range strings.Fields(files) {
		before, err := git("show", tag+":"+name)
		if err != nil {
			return err
		}
		after, err := os.ReadFile(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		lost, _ := compare(strings.Split(before, "\n"), append(strings.Split(string(after), "\n"), ""))
		for _, l := range lost {
			out = append(out, strings.TrimSuffix(filepath.Base(name), ".txt")+": -"+l)
		}
	}
	if len(out) == 0 {
		return nil
	}
	fmt.Println(strings.Join(out, "\n"))
	return fmt.Errorf("this is gone since %s", tag)
}

func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("git %s: %s", strings.Join(args, " "), exit.Stderr)
	}
	return string(out), err
}
