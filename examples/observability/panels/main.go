// Panels tells whether every panel of the dashboard shows something while a program runs, and what. It runs the program,
// reads its metrics once a second as Prometheus does, and answers the panels' queries with Prometheus' own engine:
//
//	go run ./panels [-svg FILE] PROGRAM [ARGUMENT...]
//
// The exit status is 1 if a panel shows nothing, or if the program fails. With -svg it draws the panels.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/drip-go/drip/examples/observability/board"
)

func main() {
	file := flag.String("dashboard", "dashboard.json", "the dashboard's `file`")
	addresses := flag.String("metrics", "127.0.0.1:9464,127.0.0.1:9465", "the `addresses` where the program serves /metrics")
	svg := flag.String("svg", "", "draw the panels into this `file`")
	title := flag.String("title", "drip", "`text` above the panels")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "panels: which program is to be run?")
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *file, strings.Split(*addresses, ","), flag.Args(), *svg, *title); err != nil {
		fmt.Fprintln(os.Stderr, "panels:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, file string, addresses, program []string, svg, title string) error {
	b, err := board.Read(file)
	if err != nil {
		return err
	}
	recording, err := record(ctx, addresses, program)
	if err != nil {
		return err
	}
	if recording.Empty() {
		return fmt.Errorf("nobody has served metrics at %s", strings.Join(addresses, ", "))
	}
	drawings, err := show(ctx, os.Stdout, b, recording)
	if err != nil || svg == "" {
		return err
	}
	f, err := os.Create(svg)
	if err != nil {
		return err
	}
	return errors.Join(board.Draw(f, title, recording, drawings), f.Close())
}

// record reads the metrics at the addresses every second while the program runs.
func record(ctx context.Context, addresses, program []string) (*board.Recording, error) {
	cmd := exec.CommandContext(ctx, program[0], program[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	recording := board.NewRecording(time.Second)
	every := time.NewTicker(recording.Every)
	defer every.Stop()
	for {
		select {
		case err := <-ended:
			if err != nil {
				err = fmt.Errorf("%s: %w", program[0], err)
			}
			return recording, err
		case now := <-every.C:
			for _, address := range addresses {
				_ = recording.Read(ctx, address, now) // it may not be there yet, or not any more
			}
		}
	}
}

// show writes the values of each panel. Its error names the panels that show nothing.
func show(ctx context.Context, out io.Writer, b board.Board, r *board.Recording) ([]board.Drawing, error) {
	var drawings []board.Drawing
	var empty []string
	fmt.Fprintf(out, "%-30s %-6s %s\n", "panel", "lines", "last values")
	for _, p := range b.Panels {
		lines, err := p.Lines(ctx, r)
		if err != nil {
			return nil, err
		}
		var last []string
		for _, l := range lines {
			if l.HasData() {
				last = append(last, strings.TrimSpace(l.Name+" "+strconv.FormatFloat(l.Points[len(l.Points)-1].V, 'g', 3, 64)))
			}
		}
		if len(last) == 0 {
			empty = append(empty, strconv.Quote(p.Title))
		}
		fmt.Fprintf(out, "%-30s %-6d %s\n", p.Title, len(lines), strings.Join(last, ", "))
		drawings = append(drawings, board.Drawing{Panel: p, Lines: lines})
	}
	if len(empty) > 0 {
		return nil, fmt.Errorf("nothing to see in %s", strings.Join(empty, ", "))
	}
	fmt.Fprintf(out, "All %d panels show data.\n", len(b.Panels))
	return drawings, nil
}
