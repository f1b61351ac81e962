// Package address reads the URL of a server.
package address

import (
	"errors"
	"net/url"
	"strings"
)

// ErrMalformed is the only error of Parse. It repeats no part of the URL.
var ErrMalformed = errors.New("malformed URL")

// Parse parses the URL of a server, which may hold a password. A URL whose password contains an unescaped "/", "?" or "#" is
// malformed: a part of the password would pass for the host, and appear in the error of connecting.
func Parse(rawURL string) (*url.URL, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Host != "" && strings.Contains(u.Path+u.RawQuery+u.Fragment, "@") {
		return nil, ErrMalformed // the error of url.Parse repeats its input
	}
	return u, nil
}

// Misplaced reports whether what should be a host, after a password, is in the path: "redis:///user:secret@host". Only a server
// whose URL may lack the host needs it; a file may have such a path.
func Misplaced(u *url.URL) bool { return u.Host == "" && strings.Contains(u.Path, "@") }
