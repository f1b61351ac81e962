package servers

import (
	"io"
	"net"
	"sync"
)

// Listen takes connections at the address that it returns, until the test is over. serve gets each in a goroutine of its own.
func Listen(t TB, serve func(client net.Conn)) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(client)
		}
	}()
	return listener.Addr().String()
}

// Pass connects a client with the server at an address. up copies what the client sends, and down what the server sends, as
// io.Copy does. When one of them returns, the side to which it copies is closed.
func Pass(client net.Conn, addr string, up, down func(to io.Writer, from io.Reader) (int64, error)) {
	defer client.Close()
	server, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { _, _ = up(server, client); server.Close() })
	both.Go(func() { _, _ = down(client, server); client.Close() })
	both.Wait()
}
