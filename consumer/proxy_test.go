package consumer

import (
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
)

// proxy passes connections on to the broker, and cuts them when told to.
type proxy struct {
	listener net.Listener
	target   string
	most     int64 // bytes of the broker's answers it passes on in a connection, then it stalls; 0 is all

	mu    sync.Mutex
	conns map[net.Conn]bool
}

// through returns a proxy in front of the broker at rawURL, and the URL to reach the broker through it.
func through(t testing.TB, rawURL string, most int64) (*proxy, string) {
	t.Helper()
	u, err := url.Parse(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, target: u.Host, most: most, conns: map[net.Conn]bool{}}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { p.pass(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.cut()
		serving.Wait()
	})
	u.Host = l.Addr().String()
	return p, u.String()
}

func (p *proxy) pass(client net.Conn) {
	defer client.Close()
	broker, err := net.Dial("tcp", p.target)
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
			if p.most > 0 && pair[0] == client {
				io.CopyN(client, broker, p.most)
				io.Copy(io.Discard, broker)
			} else {
				io.Copy(pair[0], pair[1])
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
