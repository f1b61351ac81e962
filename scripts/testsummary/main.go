// Testsummary reads the output of go test -json and prints a summary: a line for each package, the output of failed
// tests and packages, each skip with its reason, and a count. Its exit status is 1 when something failed or nothing
// ran.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// event is a line of go test -json; see go doc test2json.
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64
	Output  string
}

func main() {
	var passed, failed, skipped int
	broken := false
	output := map[string]*strings.Builder{} // of a test, or of a package outside its tests
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Action == "" {
			fmt.Println(lines.Text()) // not of a test: a compiler's message
			continue
		}
		key := e.Package + " " + e.Test
		switch e.Action {
		case "output", "build-output":
			b := output[key]
			if b == nil {
				b = &strings.Builder{}
				output[key] = b
			}
			b.WriteString(e.Output)
			if e.Action == "build-output" {
				fmt.Print(e.Output)
			}
		case "pass", "fail", "skip":
			if e.Action == "fail" {
				broken = true
				if b := output[key]; b != nil {
					fmt.Print(b)
				}
			}
			switch {
			case e.Test == "":
				fmt.Printf("%-4s %s %.1fs\n", map[string]string{"pass": "ok", "fail": "FAIL", "skip": "-"}[e.Action], e.Package, e.Elapsed)
			case e.Action == "pass":
				passed++
			case e.Action == "fail":
				failed++
			case e.Action == "skip":
				skipped++
				fmt.Printf("skipped: %s %s: %s\n", e.Package, e.Test, reason(output[key]))
			}
			delete(output, key)
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Println(err)
		broken = true
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	if broken || passed == 0 {
		os.Exit(1)
	}
}

// reason is the line in which a skipped test says why.
func reason(output *strings.Builder) string {
	if output == nil {
		return ""
	}
	for line := range strings.Lines(output.String()) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "===") && !strings.HasPrefix(line, "---") {
			return line
		}
	}
	return ""
}
