package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"
)

// consumers are the consumer processes. They run this program again, see consumerMain.
type consumers struct {
	failed chan error // from each that ended by itself
	stop   func() error
}

// startConsumers starts n processes, which serve their metrics at n ports, beginning with the port of the settings. Call stop
// also after an error. It may be called again, and returns the errors of the processes.
func startConsumers(n int, s settings, l *ledger, out *screen) (*consumers, error) {
	var all []*process
	stopping := make(chan struct{})
	c := &consumers{failed: make(chan error, n)}
	c.stop = sync.OnceValue(func() error {
		close(stopping)
		for _, p := range all {
			p.stdin.Close()
		}
		tooLong := time.After(4 * drainTime)
		var errs []error
		for _, p := range all {
			select {
			case <-p.ended:
			case <-tooLong:
				p.cmd.Process.Kill()
				<-p.ended
			}
			errs = append(errs, p.err)
		}
		return errors.Join(errs...)
	})
	for i := range n {
		own := s
		var err error
		if own.Metrics, err = metricsOf(s.Metrics, i); err != nil {
			return c, err
		}
		p, err := startProcess(fmt.Sprintf("consumer process %d", i+1), own, l, out)
		if err != nil {
			return c, err
		}
		all = append(all, p)
		go func() {
			<-p.ended
			select {
			case <-stopping:
			default:
				err := p.err
				if err == nil {
					err = fmt.Errorf("%s: it ended by itself", p.name)
				}
				c.failed <- err
			}
		}()
	}
	return c, nil
}

type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.Closer // when it is closed the process ends
	ended chan struct{}
	err   error // set when ended is closed
}

// mostSaid is how many lines of a process's log are shown: when a server is gone, every message has something to say.
const mostSaid = 10

func startProcess(name string, s settings, l *ledger, out *screen) (*process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{name: name, cmd: exec.Command(program), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), roleVariable+"="+consumerRole)
	p.cmd.Stdout = &lineWriter{each: func(line []byte) {
		n, err := strconv.Atoi(string(line))
		if err != nil {
			out.say(fmt.Sprintf("%s: %s", name, line))
			return
		}
		l.asked(n)
	}}
	said := 0
	p.cmd.Stderr = &lineWriter{each: func(line []byte) {
		switch said++; {
		case said <= mostSaid:
			out.say(fmt.Sprintf("%s: %s", name, line))
		case said == mostSaid+1:
			out.say(name + ": ...")
		}
	}}
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		if err := p.cmd.Wait(); err != nil {
			p.err = fmt.Errorf("%s: %w", name, err)
		}
		close(p.ended)
	}()
	// It fits the pipe's buffer. A process that is gone already is noticed by its end.
	_ = json.NewEncoder(stdin).Encode(s)
	return p, nil
}

// lineWriter calls each with every line written to it.
type lineWriter struct {
	each func(line []byte)
	rest []byte
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.rest = append(w.rest, p...)
	for {
		line, after, found := bytes.Cut(w.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		w.each(line)
		w.rest = after
	}
}
