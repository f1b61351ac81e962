package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/drip-go/drip/internal/columns"
)

// command is the command of a word after drip. The flags set its fields.
type command interface {
	flags(*flag.FlagSet)
	run(ctx context.Context, t *terminal, args []string) error
}

// listing is a command in the help.
type listing struct {
	name  string
	args  string // as in "URL ENTITY"; those in brackets may be left out
	about string
	help  string
	make  func() command
}

// directory is all there is.
func directory() []listing {
	return []listing{
		{"inspect", "URL ENTITY", "show why an entity waits, and until when", inspectHelp, func() command { return new(inspect) }},
		{"top", "URL", "show the busiest and the longest-waiting entities", topHelp, func() command { return new(top) }},
		{"serve", "URL", "serve a page with entities, queues and letters", serveHelp, func() command { return new(serve) }},
		{"pause", "URL ENTITY DURATION", "let nothing of an entity run for a time", pauseHelp, func() command { return new(pause) }},
		{"resume", "URL ENTITY", "end a pause, or a closing after a refusal", resumeHelp, func() command { return new(resume) }},
		{"reset", "URL ENTITY", "take back all tokens and tickets of an entity", resetHelp, func() command { return new(reset) }},
		{"pin", "URL ENTITY", "set a limit besides the consumers', for a time", pinHelp, func() command { return new(pin) }},
		{"unpin", "URL ENTITY", "end a pin", "", func() command { return new(unpin) }},
		{"simulate", "FILE", "play limits and a load in virtual time", simulateHelp, func() command { return new(simulation) }},
		{"queues", "AMQP-URL QUEUE", "show the delay queues of a work queue", queuesHelp, func() command { return new(lookQueues) }},
		{"dead", "ACTION AMQP-URL QUEUE", "list dead letters of a work queue, or requeue them", deadHelp, func() command { return new(dead) }},
		{"completion", "SHELL", "print a script that completes command lines", completionHelp, func() command { return new(completion) }},
		{"help", "[COMMAND]", "print this, or more about a word", "", func() command { return new(help) }},
		{"version", "", "print the version", "", func() command { return new(version) }},
	}
}

// negative is the error of package flag for a number or a duration below 0: no flag begins with a digit.
var negative = regexp.MustCompile("^flag provided but not defined: -[0-9]")

// parse reads a command's arguments. Flags may stand anywhere before "--".
func parse(d listing, c command, args []string) (positional []string, err error) {
	set := d.flagSet(c)
	for len(args) > 0 {
		err := set.Parse(args)
		rest := set.Args()
		read := len(args) - len(rest)
		if err != nil && negative.MatchString(err.Error()) {
			positional, args = append(positional, args[read-1]), rest
			continue
		}
		if err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			text := strings.NewReplacer(
				"flag provided but not defined: -", "there is no flag --",
				"for flag -", "for --", `" for -`, `" for --`, "flag needs an argument: -", "a value is missing for --",
			).Replace(err.Error())
			if value, bad := strings.CutSuffix(text, ": parse error"); bad {
				text = value + ": it must be a whole number, not below 0"
				if strings.HasPrefix(value, "invalid boolean") {
					text = value + ": it must be true or false"
				}
			}
			return nil, usagef("%s; drip help %s lists the flags", strings.ReplaceAll(text, "---", "--"), d.name)
		}
		if read > 0 && args[read-1] == "--" {
			positional = append(positional, rest...)
			break
		}
		if len(rest) == 0 {
			break
		}
		positional, args = append(positional, rest[0]), rest[1:]
	}
	leftOut := ""
	if l, ok := c.(interface{ leftOut() string }); ok {
		leftOut = l.leftOut()
	}
	var names []string
	most := 0
	for name := range strings.FieldsSeq(d.args) {
		if name == leftOut {
			continue
		}
		most++
		if !strings.HasPrefix(name, "[") {
			names = append(names, name)
		}
	}
	switch {
	case len(positional) < len(names):
		if d.name == "dead" && len(positional) > 0 && strings.Contains(positional[0], ":") { // a URL
			return nil, usagef("ACTION is missing; it is list or requeue")
		}
		return nil, usagef("%s is missing; it is: drip %s %s", names[len(positional)], d.name, d.args)
	case len(positional) > most:
		return nil, usagef("there are too many arguments; it is: drip %s", strings.TrimSpace(d.name+" "+d.args))
	}
	for i, name := range names {
		if positional[i] == "" {
			return nil, usagef("%s is empty", name)
		}
		if name == "ENTITY" && hasPassword(positional[i]) {
			return nil, usagef("ENTITY is a URL with a password; it is: drip %s %s", d.name, d.args)
		}
	}
	set.Visit(func(f *flag.Flag) { // an unset variable of a script must not mean all
		switch value := f.Value.String(); {
		case value == "":
			err = usagef("--%s is empty", f.Name)
		case value == "0" && f.DefValue == "0": // which stands for a flag that is left out
			err = usagef("--%s must be above 0", f.Name)
		}
	})
	return positional, err
}

func (d listing) flagSet(c command) *flag.FlagSet {
	set := flag.NewFlagSet(d.name, flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.Usage = func() {}
	c.flags(set)
	return set
}

// flagNames are the names of a command's flags, with their dashes.
func (d listing) flagNames() (names []string) {
	d.flagSet(d.make()).VisitAll(func(f *flag.Flag) { names = append(names, "--"+f.Name) })
	return names
}

// timeout is a flag of all commands that ask a server.
type timeout struct{ timeout patience }

func (t *timeout) flags(set *flag.FlagSet) {
	set.TextVar(&t.timeout, "timeout", patience{duration(5 * time.Second)}, "how long the server may take for an answer, a `duration`")
}

func (t timeout) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, t.span())
}

func (t timeout) span() time.Duration { return time.Duration(t.timeout.duration) }

// patience is a duration above 0.
type patience struct{ duration }

func (p *patience) UnmarshalText(text []byte) error {
	err := p.duration.UnmarshalText(text)
	if err == nil && p.duration <= 0 {
		err = errors.New("it must be above 0")
	}
	return err
}

type noFlags struct{}

func (noFlags) flags(*flag.FlagSet) {}

// help

type help struct{ noFlags }

func (help) run(_ context.Context, t *terminal, args []string) error {
	if len(args) == 0 {
		_, err := io.WriteString(t.out, overview())
		return err
	}
	if text, ok := topics[args[0]]; ok {
		_, err := io.WriteString(t.out, text())
		return err
	}
	all := directory()
	i := slices.IndexFunc(all, func(d listing) bool { return d.name == args[0] })
	if i < 0 {
		return usagef("there is nothing about %q; drip help lists the commands", args[0])
	}
	_, err := io.WriteString(t.out, all[i].manual())
	return err
}

func overview() string {
	var b strings.Builder
	b.WriteString("drip looks into the storages and queues of drip, and tries limits before use.\n\n")
	for _, d := range directory() {
		fmt.Fprintf(&b, "  %-26s  %s\n", strings.TrimSpace(d.name+" "+d.args), d.about)
	}
	b.WriteString(overviewHelp)
	return b.String()
}

func (d listing) manual() string {
	var b strings.Builder
	fmt.Fprintf(&b, "drip %s\n\n%s.\n", strings.TrimSpace(d.name+" "+d.args), strings.ToUpper(d.about[:1])+d.about[1:])
	if d.help != "" {
		b.WriteString("\n" + d.help)
	}
	var flags strings.Builder
	d.flagSet(d.make()).VisitAll(func(f *flag.Flag) {
		value, usage := flag.UnquoteUsage(f)
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" && f.DefValue != "0s" {
			usage += " (" + f.DefValue + ")"
		}
		label := strings.TrimSpace("--" + f.Name + " " + value)
		for i, line := range columns.Lines(usage, 80-22) {
			if i > 0 {
				label = ""
			}
			fmt.Fprintf(&flags, "  %-18s  %s\n", label, line)
		}
	})
	if flags.Len() > 0 {
		b.WriteString("\nFlags, which may stand anywhere before --:\n\n" + flags.String())
	}
	return b.String()
}
