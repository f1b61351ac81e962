package servers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// TLS is an address with TLS, behind which is a server without. Its certificate is for 127.0.0.1, and no system trusts it.
type TLS struct {
	Addr   string      // host:port
	CAFile string      // the certificate, in PEM
	Trusts *tls.Config // of a client that trusts it

	server string
	config *tls.Config
	ask    []byte // what a client sends before TLS begins; the answer is S
}

// PostgresAsks is what a client of PostgreSQL sends before TLS begins: SSLRequest in
// https://www.postgresql.org/docs/current/protocol-message-formats.html.
var PostgresAsks = []byte{0, 0, 0, 8, 4, 210, 22, 47}

// FrontTLS puts TLS in front of the server at host:port, until the test is over. The client sends ask before TLS begins.
func FrontTLS(t interface {
	TB
	TempDir() string
}, server string, ask []byte) *TLS {
	t.Helper()
	f := &TLS{CAFile: filepath.Join(t.TempDir(), "ca.pem"), server: server, ask: ask}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	leaf, err := x509.ParseCertificate(der)
	must(t, err)
	must(t, os.WriteFile(f.CAFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	f.config = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	f.Trusts = &tls.Config{RootCAs: x509.NewCertPool()}
	f.Trusts.RootCAs.AddCert(leaf)
	f.Addr = Listen(t, f.serve)
	return f
}

// serve passes a connection on to the server. A connection whose client sends something else ends.
func (f *TLS) serve(client net.Conn) {
	defer client.Close()
	if len(f.ask) > 0 {
		asked := make([]byte, len(f.ask))
		if _, err := io.ReadFull(client, asked); err != nil || string(asked) != string(f.ask) {
			return
		}
		if _, err := client.Write([]byte("S")); err != nil {
			return
		}
	}
	secure := tls.Server(client, f.config)
	if err := secure.Handshake(); err != nil {
		return
	}
	Pass(secure, f.server, io.Copy, io.Copy)
}
