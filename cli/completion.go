package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
)

const completionHelp = `  bash   source <(drip completion bash)      in ~/.bashrc
  zsh    source <(drip completion zsh)       in ~/.zshrc, after compinit
  fish   drip completion fish | source       in ~/.config/fish/config.fish
`

// completion is "drip completion".
type completion struct{ noFlags }

func (completion) run(_ context.Context, t *terminal, args []string) error {
	shells := map[string]func(io.Writer, []listing){"bash": bash, "zsh": zsh, "fish": fish}
	script, ok := shells[args[0]]
	if !ok {
		return usagef("there is nothing for %q; there is for bash, zsh and fish", args[0])
	}
	var b strings.Builder
	script(&b, directory())
	_, err := io.WriteString(t.out, b.String())
	return err
}

// words are the words that may follow a command besides files.
func (d listing) words() []string {
	switch d.name {
	case "help":
		return append(names(directory()), "limits", "presets", "urls")
	case "dead":
		return append([]string{"list", "requeue"}, d.flagNames()...)
	case "completion":
		return []string{"bash", "zsh", "fish"}
	}
	return d.flagNames()
}

func names(all []listing) (names []string) {
	for _, d := range all {
		names = append(names, d.name)
	}
	return names
}

func bash(w io.Writer, all []listing) {
	fmt.Fprintf(w, `_drip() {
  local cur=${COMP_WORDS[COMP_CWORD]} words=
  if ((COMP_CWORD == 1)); then
    words=%q
  else
    case ${COMP_WORDS[1]} in
`, strings.Join(names(all), " "))
	for _, d := range all {
		if words := d.words(); words != nil {
			fmt.Fprintf(w, "      %s) words=%q ;;\n", d.name, strings.Join(words, " "))
		}
	}
	io.WriteString(w, `    esac
  fi
  [[ $words == -* && $cur != -* ]] && words=
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o default -F _drip drip
`)
}

func zsh(w io.Writer, all []listing) {
	io.WriteString(w, "#compdef drip\n_drip() {\n  local -a choices\n  if ((CURRENT == 2)); then\n    choices=(\n")
	for _, d := range all {
		fmt.Fprintf(w, "      '%s:%s'\n", d.name, strings.ReplaceAll(d.about, "'", `'\''`))
	}
	io.WriteString(w, "    )\n    _describe command choices\n    return\n  fi\n  case $words[2] in\n")
	for _, d := range all {
		if words := d.words(); words != nil {
			fmt.Fprintf(w, "    %s) choices=(%s) ;;\n", d.name, strings.Join(words, " "))
		}
	}
	io.WriteString(w, "  esac\n  compadd -a choices\n  _files\n}\ncompdef _drip drip\n")
}

func fish(w io.Writer, all []listing) {
	for _, d := range all {
		fmt.Fprintf(w, "complete -c drip -n __fish_use_subcommand -f -a %s -d '%s'\n", d.name, strings.ReplaceAll(d.about, "'", `\'`))
		given := fmt.Sprintf("-n '__fish_seen_subcommand_from %s'", d.name)
		for _, word := range d.words() {
			if flag, ok := strings.CutPrefix(word, "--"); ok {
				fmt.Fprintf(w, "complete -c drip %s -l %s\n", given, flag)
			} else {
				fmt.Fprintf(w, "complete -c drip %s -f -a %s\n", given, word)
			}
		}
	}
}
