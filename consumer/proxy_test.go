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
	pass   filter // nil passes all; for connections that begin later
	conns  map[net.Conn]bool
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
	p := &proxy{most: most, conns: map[net.Conn]bool{}}
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
	defer client.Close()
	p.mu.Lock()
	target, pass := p.target, p.pass
	p.mu.Unlock()
	broker, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer broker.Close()
	p.mu.Lock()
	p.conns[client], p.conns[broker] = true, true
	p.mu.Unlock()
	var both sync.WaitGroup
	for _, pair := range [][2]net.Conn{{client, broker}, {broker, client}} {
		both.Go(func() {
			to, from := pair[0], pair[1]
			switch {
			case p.most > 0 && to == client:
				io.CopyN(client, broker, p.most)
				io.Copy(io.Discard, broker)
			case pass != nil:
				copyFrames(to, from, from == broker, pass)
			default:
				io.Copy(to, from)
			}
			client.Close()
			broker.Close()
		})
	}
	both.Wait()
	p.mu.Lock()
	delete(p.conns, client)
	delete(p.conns, broker)
	p.mu.Unlock()
}

// copyFrames copies the frames that pass wants, until one of the connections ends.
func copyFrames(to io.Writer, from io.Reader, fromBroker bool, pass filter) {
	if !fromBroker {
		if _, err := io.CopyN(to, from, 8); err != nil { // the protocol's name and version
			return
		}
	}
	for {
		const head, tail = 7, 1
		b := make([]byte, head, 512)
		if _, err := io.ReadFull(from, b); err != nil {
			return
		}
		b = append(b, make([]byte, binary.BigEndian.Uint32(b[3:])+tail)...)
		if _, err := io.ReadFull(from, b[head:]); err != nil {
			return
		}
		if pass(frame{fromBroker, b[0], b[head : len(b)-tail]}) {
			if _, err := to.Write(b); err != nil {
				return
			}
		}
	}
}

// cut closes all connections and returns how many there were.
func (p *proxy) cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.conns) / 2
	for conn := range p.conns {
		conn.(*net.TCPConn).SetLinger(0) // a reset, not a goodbye
		conn.Close()
	}
	return n
}
