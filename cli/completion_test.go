package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Bash offers completions for the last word of a command line.
func TestBashCompletes(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	ok(t, os.WriteFile(filepath.Join(dir, "plan.json"), nil, 0o666))
	script := must(t, "completion", "bash")
	for line, want := range map[string]string{
		"drip ":                               "completion dead help inspect pause pin queues reset resume serve simulate top unpin version",
		"drip in":                             "inspect",
		"drip re":                             "reset resume",
		"drip completion ":                    "bash fish zsh",
		"drip help li":                        "limits",
		"drip inspect redis://localhost s --": "--json --limits --timeout",
		"drip top --o":                        "--once",
		"drip reset env:X shop --y":           "--yes",
		"drip simulate --sv":                  "--svg",
		"drip simulate --svg x.svg pl":        "plan.json",
		"drip inspect --limits pl":            "plan.json",
		"drip simulate ":                      "plan.json",
		"drip nonsense ":                      "plan.json",
	} {
		words := strings.Split(line, " ")
		// As bash does it: the function that "complete" names sets COMPREPLY; without one -o default completes files.
		cmd := exec.Command(bash, "--norc", "-c", script+`
set -- $(complete -p drip); [[ "$*" == "complete -o default -F _drip drip" ]] || exit 1
IFS=: read -ra COMP_WORDS <<< "$LINE"; [[ $LINE == *: ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_drip drip "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
[[ ${#COMPREPLY[@]} -gt 0 ]] || COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
printf '%s\n' "${COMPREPLY[@]}"`)
		for i := range words {
			words[i] = strings.ReplaceAll(words[i], ":", "_") // which separates them here
		}
		cmd.Env, cmd.Dir = append(os.Environ(), "LINE="+strings.Join(words, ":")), dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v: %s", line, err, out)
		}
		got := strings.Fields(string(out))
		if slices.Sort(got); strings.Join(got, " ") != want {
			t.Errorf("%q is completed by %q, want %q", line, got, want)
		}
	}
}

// The others are read by their shells where there are any, and say the same everywhere.
func TestCompletionScripts(t *testing.T) {
	for shell, check := range map[string]string{"bash": "-n", "zsh": "-n", "fish": "--no-execute"} {
		script := must(t, "completion", shell)
		for _, d := range directory() {
			if !strings.Contains(script, d.name) {
				t.Errorf("%s does not know %s", shell, d.name)
			}
			for _, flag := range d.flagNames() {
				if !strings.Contains(script, strings.TrimPrefix(flag, "--")) {
					t.Errorf("%s does not know %s of %s", shell, flag, d.name)
				}
			}
		}
		name, err := exec.LookPath(shell)
		if err != nil {
			t.Log(err)
			continue
		}
		file := write(t, fmt.Sprint("completion.", shell), script)
		if out, err := exec.Command(name, check, file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", shell, err, out)
		}
	}
}
