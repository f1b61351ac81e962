// Package dial connects to RabbitMQ.
package dial

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/drip-go/drip/internal/address"
)

// ErrURL is the only error of Parse. It repeats no part of the URL, which may hold a password.
var ErrURL = errors.New("not an AMQP URL such as amqp://user:password@host:5672/vhost, with the password escaped")

// Parse parses the URL of a broker.
func Parse(rawURL string) (amqp.URI, error) {
	_, err := address.Parse(rawURL)
	if err != nil {
		return amqp.URI{}, ErrURL
	}
	uri, err := amqp.ParseURI(rawURL)
	if err != nil {
		return amqp.URI{}, ErrURL
	}
	return uri, nil
}

// Timeout is how long the broker may take to answer, unless the URL has a connection_timeout.
const Timeout = 15 * time.Second

// RabbitMQ opens a connection named for its purpose. Its error names the address and never the URL. It is
// context.DeadlineExceeded if the broker does not answer in time.
func RabbitMQ(ctx context.Context, rawURL string, config amqp.Config, purpose string) (*amqp.Connection, error) {
	uri, err := Parse(rawURL)
	if err != nil {
		return nil, err
	}
	timeout := Timeout
	if uri.ConnectionTimeout > 0 {
		timeout = time.Duration(uri.ConnectionTimeout) * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var watch func() bool
	config.Dial = func(network, addr string) (net.Conn, error) { // the client's own dialer knows no context
		conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		watch = context.AfterFunc(ctx, func() { conn.SetDeadline(time.Now()) })
		return unstuck{conn}, nil
	}
	if config.TLSClientConfig != nil {
		config.TLSClientConfig = config.TLSClientConfig.Clone() // the client writes the server's name into it
	}
	config.Properties = amqp.NewConnectionProperties()
	config.Properties.SetClientConnectionName("drip " + purpose)
	conn, err := amqp.DialConfig(rawURL, config)
	if watch != nil && !watch() && err == nil {
		conn.CloseDeadline(time.Now())
		err = ctx.Err()
	}
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		} else if errors.Is(err, os.ErrDeadlineExceeded) { // the connection's timer was first
			err = context.DeadlineExceeded
		} else if errors.Is(err, amqp.ErrVhost) { // the client drops the broker's reason
			err = fmt.Errorf("%w: it does not exist, the user has no permission there, its limit of connections is reached, or the connection was lost", err)
		}
		return nil, fmt.Errorf("connect to RabbitMQ at %s: %w", net.JoinHostPort(uri.Host, fmt.Sprint(uri.Port)), err)
	}
	return conn, nil
}

// unstuck is a connection whose writes end when its reads do. A broker that reads no more, because it is blocked or gone, stops
// a write for as long as the system's patience lasts. The client extends the time to read between two writes only, so then its
// read fails. It closes the connection after that, but first waits for the write.
type unstuck struct{ net.Conn }

// Read implements [net.Conn].
func (c unstuck) Read(b []byte) (n int, err error) {
	if n, err = c.Conn.Read(b); err != nil {
		c.SetWriteDeadline(time.Now())
	}
	return n, err
}
