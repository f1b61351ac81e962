// Surface lists what users can import in the files of internal/surface/api, one for each package.
//
//	go run ./internal/surface     print the files that do not agree with their packages; nothing if all do
//	go run ./internal/surface -w  write the files
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const folder = "internal/surface/api"

func main() {
	log.SetFlags(0)
	write := flag.Bool("w", false, "write the files")
	flag.Parse()
	texts, err := textsOf(".")
	if err == nil && *write {
		err = writeFiles(texts)
	} else if err == nil {
		for _, name := range outdated(folder, texts) {
			fmt.Println(name)
		}
	}
	if err != nil {
		log.Fatal(err)
	}
}

// textsOf returns the texts of the files, by their names.
func textsOf(root string) (map[string]string, error) {
	all, err := read(root)
	texts := map[string]string{}
	for _, s := range all {
		name := strings.ReplaceAll(s.path, "/", "-")
		if name == "." {
			name = "drip"
		}
		texts[name+".txt"] = strings.Join(s.lines, "\n") + "\n"
	}
	return texts, err
}

func writeFiles(texts map[string]string) error {
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	for name, text := range texts {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// outdated returns the files of a folder that have other texts, that are missing, or whose packages are.
func outdated(dir string, texts map[string]string) (names []string) {
	for name, text := range texts {
		if stored, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(stored) != text {
			names = append(names, name)
		}
	}
	entries, _ := os.ReadDir(dir) // without a folder all files are missing
	for _, e := range entries {
		if _, ok := texts[e.Name()]; !ok {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names
}
