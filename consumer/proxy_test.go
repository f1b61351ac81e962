package consumer

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/drip-go/drip/internal/servers"
)

// proxy passes connections on to the broker, and cuts them when told to.
type proxy struct {
	most int64 // bytes of the broker's answers it passes on in a connection, then it stalls; 0 is all

	mu     sync.Mutex
	target string
	pass   filter               // nil passes all; for connections that begin later
	conns  map[[2]net.Conn]bool // to the client and to the broker
}

// frame is one of AMQP 0-9-1.
type frame struct {
	fromBroker bool
	kind       byte // 1 is a method, 2 a message's properties
	payload    []byte
}

// filter tells whether a frame passes, or counts. It is called from many goroutines at once.
type filter func(f frame) bool

// is tells whether the frame is that method of the class basic.
func (f frame) is(method uint16) bool {
	const basic = 60
	return f.kind == 1 && len(f.payload) >= 4 &&
		binary.BigEndian.Uint16(f.payload) == basic && binary.BigEndian.Uint16(f.payload[2:]) == method
}

const (
	basicCancel   = 30
	basicCancelOK = 31
	basicPublish  = 40
	basicReturn   = 50
	basicDeliver  = 60
	basicAck      = 80
	basicNack     = 120
)

// confirms tells whether the frame is the broker's confirmation of a publishing, acknowledges whether it is the
// acknowledgement of a delivery.
func (f frame) confirms() bool     { return f.fromBroker && f.is(basicAck) }
func (f frame) acknowledges() bool { return !f.fromBroker && f.is(basicAck) }

// through returns a proxy in front of the broker at rawURL, and the URL to reach the broker through it.
func through(t testing.TB, rawURL string, most int64) (*proxy, string) {
	t.Helper()
	p := &proxy{most: most, conns: map[[2]net.Conn]bool{}}
	addr := servers.Listen(t, p.serve)
	t.Cleanup(func() { p.cut() })
	u := p.to(t, rawURL)
	u.Host = addr
	return p, u.String()
}

// to sends the connections that begin from now on to the broker at rawURL.
func (p *proxy) to(t testing.TB, rawURL string) *url.URL {
	t.Helper()
	u, err := url.Parse(rawURL)
	must(t, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = u.Host
	return u
}

// through lets only those frames pass that f wants, of connections that begin from now on.
func (p *proxy) through(f filter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pass = f
}

// counts counts such frames, of connections that begin from now on.
func (p *proxy) counts(such filter) *atomic.Int64 {
	var n atomic.Int64
	p.through(func(f frame) bool {
		if such(f) {
			n.Add(1)
		}
		return true
	})
	return &n
}

func (p *proxy) serve(client net.Conn) {
	p.mu.Lock()
	target, pass := p.target, p.pass
	p.mu.Unlock()
	servers.Pass(client, target, func(broker io.Writer, _ io.Reader) (int64, error) {
		pair := [2]net.Conn{client, broker.(net.Conn)}
		p.mu.Lock()
		p.conns[pair] = true
		p.mu.Unlock()
		defer func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.conns, pair)
		}()
		return copyFrames(broker, client, false, pass)
	}, func(_ io.Writer, broker io.Reader) (int64, error) {
		if p.most > 0 {
			io.CopyN(client, broker, p.most)
			return io.Copy(io.Discard, broker)
		}
		return copyFrames(client, broker, true, pass)
	})
}

// copyFrames copies the frames that pass wants, until one of the connections ends. A nil pass wants all.
func copyFrames(to io.Writer, from io.Reader, fromBroker bool, pass filter) (int64, error) {
	if pass == nil {
		return io.Copy(to, from)
	}
	if !fromBroker {
		if _, err := io.CopyN(to, from, 8); err != nil { // the protocol's name and version
			return 0, err
		}
	}
	for {
		const head, tail = 7, 1
		b := make([]byte, head, 512)
		if _, err := io.ReadFull(from, b); err != nil {
			return 0, err
		}
		b = append(b, make([]byte, binary.BigEndian.Uint32(b[3:])+tail)...)
		if _, err := io.ReadFull(from, b[head:]); err != nil {
			return 0, err
		}
		if pass(frame{fromBroker, b[0], b[head : len(b)-tail]}) {
			if _, err := to.Write(b); err != nil {
				return 0, err
			}
		}
	}
}

// cut closes all connections and returns how many there were.
func (p *proxy) cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pair := range p.conns {
		for _, conn := range pair {
			conn.(*net.TCPConn).SetLinger(0) // a reset, not a goodbye
			conn.Close()
		}
	}
	return len(p.conns)
}
