// Package address reads the URL of a server.
package address

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"
)

// ErrMalformed is the only error of Parse. It repeats no part of the URL.
var ErrMalformed = errors.New("malformed URL")

// Parse parses the URL of a server, which may hold a password. A URL whose password contains an unescaped "/", "?" or "#" is
// malformed: a part of the password would pass for the host, and appear in the error of connecting.
func Parse(rawURL string) (*url.URL, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Host != "" && strings.Contains(u.EscapedPath()+u.RawQuery+u.Fragment, "@") {
		return nil, ErrMalformed // the error of url.Parse repeats its input
	}
	return u, nil
}

// Split separates the parameters of a storage, which it sets, from the rest of the URL, which is for the storage's client. A
// parameter is a *string or a *[time.Duration]; it keeps its value if the URL does not have it. A URL with three slashes after
// the scheme has no host. Its path may hold a password, "redis:///user:secret@host", which a client would repeat in its error. So
// Split returns an error.
func Split(u *url.URL, parameters map[string]any) (rest string, err error) {
	if u.Host == "" && strings.Contains(u.Path, "@") {
		return "", errors.New("the URL has three slashes after the scheme; it must have two")
	}
	query := u.Query()
	for name, to := range parameters {
		value := query.Get(name)
		query.Del(name)
		if value == "" {
			continue
		}
		switch to := to.(type) {
		case *string:
			*to = value
		case *time.Duration:
			if *to, err = time.ParseDuration(value); err != nil {
				return "", fmt.Errorf("%s is not a duration such as 1h", name)
			}
		}
	}
	without := *u
	without.RawQuery = query.Encode()
	return without.String(), nil
}
