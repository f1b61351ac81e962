// Package browser drives a headless Chromium, for tests of pages and for pictures of them. It speaks the DevTools
// protocol over a pipe, so nothing listens and nothing is installed besides the browser.
package browser

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/drip-go/drip/internal/sleep"
)

// ErrMissing is wrapped by the error of Start if there is no Chromium.
var ErrMissing = errors.New("chromium is not installed (apt-get install chromium, or set DRIP_CHROMIUM)")

// Browser is a Chromium. Start makes one, Close ends it. It is safe for concurrent use.
type Browser struct {
	cmd    *exec.Cmd
	folder string
	in     *os.File
	ended  chan struct{} // closed when it answers no more

	mu      sync.Mutex
	last    int
	waiting map[int]chan answer
	tabs    map[string]*Tab // by session
}

type answer struct {
	ID        int             `json:"id"`
	Session   string          `json:"sessionId"`
	Method    string          `json:"method"`
	Params    json.RawMessage `json:"params"`
	Result    json.RawMessage `json:"result"`
	Exception *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// Start starts the program that DRIP_CHROMIUM names, or the one in the PATH.
func Start() (*Browser, error) {
	var program string
	for _, name := range []string{os.Getenv("DRIP_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); name != "" && err == nil {
			program = path
			break
		}
	}
	if program == "" {
		return nil, ErrMissing
	}
	folder, err := os.MkdirTemp("", "drip-browser-")
	if err != nil {
		return nil, err
	}
	args := []string{
		"--headless=new", "--remote-debugging-pipe", "--user-data-dir=" + folder, "--no-first-run", "--no-default-browser-check", "--disable-gpu",
		"--disable-dev-shm-usage", "--hide-scrollbars", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--force-color-profile=srgb", "--lang=en",
	}
	if os.Getuid() == 0 {
		args = append(args, "--no-sandbox") // which a root may not have
	}
	theirIn, in, err1 := os.Pipe()
	out, theirOut, err2 := os.Pipe()
	if err := cmp.Or(err1, err2); err != nil {
		return nil, err
	}
	b := &Browser{cmd: exec.Command(program, args...), folder: folder, in: in, ended: make(chan struct{}), waiting: map[int]chan answer{}, tabs: map[string]*Tab{}}
	b.cmd.ExtraFiles = []*os.File{theirIn, theirOut} // its file descriptors 3 and 4
	err = b.cmd.Start()
	theirIn.Close()
	theirOut.Close()
	if err != nil {
		in.Close()
		out.Close()
		os.RemoveAll(folder)
		return nil, err
	}
	go b.read(out)
	return b, nil
}

// Close ends the browser.
func (b *Browser) Close() error {
	b.in.Close() // by which it ends
	select {
	case <-b.ended:
	case <-time.After(5 * time.Second):
		b.cmd.Process.Kill()
	}
	b.cmd.Wait()
	return os.RemoveAll(b.folder)
}

func (b *Browser) read(out *os.File) {
	defer close(b.ended)
	defer out.Close()
	r := bufio.NewReader(out)
	for {
		text, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var a answer
		if err := json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &a); err != nil {
			continue
		}
		b.mu.Lock()
		answered, tab := b.waiting[a.ID], b.tabs[a.Session]
		delete(b.waiting, a.ID)
		b.mu.Unlock()
		switch {
		case a.ID > 0 && answered != nil:
			answered <- a
		case a.ID == 0 && tab != nil:
			tab.happened(a)
		}
	}
}

func (b *Browser) call(ctx context.Context, session, method string, params, result any) error {
	answered := make(chan answer, 1)
	b.mu.Lock()
	b.last++
	id := b.last
	b.waiting[id] = answered
	message := map[string]any{"id": id, "method": method}
	if params != nil {
		message["params"] = params
	}
	if session != "" {
		message["sessionId"] = session
	}
	text, err := json.Marshal(message)
	if err == nil {
		_, err = b.in.Write(append(text, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return fmt.Errorf("browser: %s: %w", method, err)
	}
	select {
	case a := <-answered:
		if a.Exception != nil {
			return fmt.Errorf("browser: %s: %s", method, a.Exception.Message)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(a.Result, result)
	case <-b.ended:
		return fmt.Errorf("browser: %s: %w", method, io.ErrUnexpectedEOF)
	case <-ctx.Done():
		return fmt.Errorf("browser: %s: %w", method, ctx.Err())
	}
}

// Tab is a page in a profile of its own, which knows nothing of other tabs. It is not safe for concurrent use.
type Tab struct {
	b       *Browser
	session string
	loaded  chan struct{}

	mu       sync.Mutex
	problems []string
}

// Open opens a tab of a size, as a telephone has if phone is set.
func (b *Browser) Open(ctx context.Context, width, height int, phone bool) (*Tab, error) {
	var profile struct{ BrowserContextId string }
	if err := b.call(ctx, "", "Target.createBrowserContext", nil, &profile); err != nil {
		return nil, err
	}
	var target struct{ TargetId string }
	if err := b.call(ctx, "", "Target.createTarget", map[string]any{"url": "about:blank", "browserContextId": profile.BrowserContextId}, &target); err != nil {
		return nil, err
	}
	var attached struct{ SessionId string }
	if err := b.call(ctx, "", "Target.attachToTarget", map[string]any{"targetId": target.TargetId, "flatten": true}, &attached); err != nil {
		return nil, err
	}
	t := &Tab{b: b, session: attached.SessionId, loaded: make(chan struct{}, 16)}
	b.mu.Lock()
	b.tabs[t.session] = t
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log", "Accessibility"} {
		if err := t.call(ctx, domain+".enable", nil, nil); err != nil {
			return nil, err
		}
	}
	return t, t.call(ctx, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}, nil)
}

func (t *Tab) call(ctx context.Context, method string, params, result any) error {
	return t.b.call(ctx, t.session, method, params, result)
}

func (t *Tab) happened(a answer) {
	switch a.Method {
	case "Page.loadEventFired":
		select {
		case t.loaded <- struct{}{}:
		default:
		}
	case "Log.entryAdded", "Runtime.exceptionThrown":
		t.mu.Lock()
		t.problems = append(t.problems, string(a.Params))
		t.mu.Unlock()
	}
}

// Problems returns the browser's complaints since the last call, in JSON.
func (t *Tab) Problems() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.problems
	t.problems = nil
	return p
}

// Go goes to an address and waits until it is loaded.
func (t *Tab) Go(ctx context.Context, url string) error {
	return t.loading(ctx, func() error { return t.call(ctx, "Page.navigate", map[string]any{"url": url}, nil) })
}

// loading calls a function that loads a page, and waits until the page is loaded.
func (t *Tab) loading(ctx context.Context, f func() error) error {
	for len(t.loaded) > 0 {
		<-t.loaded
	}
	if err := f(); err != nil {
		return err
	}
	select {
	case <-t.loaded:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("browser: nothing is loaded: %w", ctx.Err())
	}
}

// Eval evaluates JavaScript and sets result, unless that is nil.
func (t *Tab) Eval(ctx context.Context, script string, result any) error {
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	if err := t.call(ctx, "Runtime.evaluate", map[string]any{"expression": script, "returnByValue": true, "awaitPromise": true}, &r); err != nil {
		return err
	}
	if e := r.ExceptionDetails; e != nil {
		return fmt.Errorf("browser: %s: %s %s", script, e.Text, e.Exception.Description)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(r.Result.Value, result)
}

// Text returns the visible text of the first element that a selector finds, empty if there is none.
func (t *Tab) Text(ctx context.Context, selector string) (text string, err error) {
	err = t.Eval(ctx, fmt.Sprintf(`(document.querySelector(%q) || {innerText: ""}).innerText`, selector), &text)
	return text, err
}

// Wait waits until JavaScript is true.
func (t *Tab) Wait(ctx context.Context, script string) error {
	for {
		var ok bool
		if err := t.Eval(ctx, "!!("+script+")", &ok); err != nil {
			return err
		}
		if ok {
			return nil
		}
		if !sleep.For(ctx, 50*time.Millisecond) {
			return fmt.Errorf("browser: it never holds that %s: %w", script, ctx.Err())
		}
	}
}

// Follow clicks on the first element that a selector finds, and waits for the page to which that leads.
func (t *Tab) Follow(ctx context.Context, selector string) error {
	return t.loading(ctx, func() error { return t.Eval(ctx, fmt.Sprintf(`document.querySelector(%q).click()`, selector), nil) })
}

// Key presses a key: "Tab", "Enter" or " ".
func (t *Tab) Key(ctx context.Context, key string) error {
	code := map[string]int{"Tab": 9, "Enter": 13, " ": 32}[key]
	text := map[string]string{"Enter": "\r", " ": " "}[key]
	for _, kind := range []string{"keyDown", "keyUp"} {
		p := map[string]any{"type": kind, "key": key, "windowsVirtualKeyCode": code, "nativeVirtualKeyCode": code}
		if kind == "keyDown" && text != "" {
			p["text"] = text
		}
		if err := t.call(ctx, "Input.dispatchKeyEvent", p, nil); err != nil {
			return err
		}
	}
	return nil
}

// Press presses a key and waits for the page to which that leads.
func (t *Tab) Press(ctx context.Context, key string) error {
	return t.loading(ctx, func() error { return t.Key(ctx, key) })
}

// Scripts says whether pages may run theirs.
func (t *Tab) Scripts(ctx context.Context, on bool) error {
	return t.call(ctx, "Emulation.setScriptExecutionDisabled", map[string]any{"value": !on}, nil)
}

// Dark says whether the reader prefers dark pages.
func (t *Tab) Dark(ctx context.Context, dark bool) error {
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	return t.call(ctx, "Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// Nameless returns the roles of elements without a name for a screen reader: controls, links, pictures and tables.
func (t *Tab) Nameless(ctx context.Context) (roles []string, err error) {
	type value struct{ Value any }
	var tree struct {
		Nodes []struct {
			Ignored    bool
			Role, Name value
		}
	}
	if err := t.call(ctx, "Accessibility.getFullAXTree", nil, &tree); err != nil {
		return nil, err
	}
	for _, n := range tree.Nodes {
		name, _ := n.Name.Value.(string)
		switch role, _ := n.Role.Value.(string); role {
		case "button", "link", "textbox", "searchbox", "checkbox", "image", "table", "navigation", "columnheader", "rowheader", "RootWebArea":
			if !n.Ignored && name == "" {
				roles = append(roles, role)
			}
		}
	}
	return roles, nil
}

// Picture returns the tab's picture, as PNG.
func (t *Tab) Picture(ctx context.Context) ([]byte, error) {
	var shot struct{ Data string }
	if err := t.call(ctx, "Page.captureScreenshot", map[string]any{"format": "png"}, &shot); err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(shot.Data)
}
