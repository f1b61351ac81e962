package cli

import (
	"net/url"
	"os"
	"strconv"
	"strings"
)

// variable is the form of an argument that keeps a URL's password out of the list of processes: env:NAME.
const variable = "env:"

// address returns the URL that an argument is, or the URL in the variable that it names.
func address(arg string) (string, error) {
	name, named := strings.CutPrefix(arg, variable)
	if !named {
		return arg, nil
	}
	if name == "" {
		return "", usagef("the name of an environment variable is missing after %s", variable)
	}
	if value := os.Getenv(name); value != "" {
		return value, nil
	}
	return "", usagef("the environment variable %s is not set", name)
}

// hasPassword reports whether an argument is a URL with a password, also with one that is not escaped.
func hasPassword(arg string) bool {
	_, rest, ok := strings.Cut(arg, "://")
	if !ok {
		return false
	}
	if len(inQuery(arg)) > 0 {
		return true
	}
	u, err := url.Parse(arg)
	if err != nil {
		return strings.Contains(rest, "@")
	}
	_, ok = u.User.Password()
	return ok
}

// withoutSecrets takes URLs with a user or a password out of a text. It also takes out the passwords of URLs on the
// command line, wherever they stand. The errors of the libraries have no passwords. But an argument may be in a wrong
// place, and a server may repeat its input.
func withoutSecrets(text string, args []string) string {
	for _, arg := range args {
		if _, value, flagged := strings.Cut(arg, "="); flagged && strings.HasPrefix(arg, "-") {
			arg = value
		}
		if value, err := address(arg); err == nil {
			arg = value
		}
		arg = strings.TrimLeft(arg, "-")
		scheme, rest, _ := strings.Cut(arg, ":")
		for _, secret := range inQuery(arg) {
			text = without(text, secret, "…")
		}
		at := strings.LastIndex(rest, "@") // the password may have one that is not escaped
		if at < 0 {
			continue
		}
		text = without(text, arg, scheme+":…")
		userinfo := strings.TrimPrefix(rest[:at], "//")
		_, password, found := strings.Cut(userinfo, ":")
		if !found { // a user is no secret, but may be a password in a wrong place
			userinfo += "@"
		}
		plain, _ := url.PathUnescape(password)
		for _, secret := range []string{userinfo, password, plain} {
			if len(secret) > 3 { // shorter ones are in every other word
				text = without(text, secret, "…")
			}
		}
	}
	return text
}

// without replaces a secret in a text, also where the text quotes it.
func without(text, secret, by string) string {
	quoted := strconv.Quote(secret)
	text = strings.ReplaceAll(text, quoted[1:len(quoted)-1], by)
	return strings.ReplaceAll(text, secret, by)
}

// inQuery returns the passwords in the query of a URL, as PostgreSQL takes them, and as they stand in it.
func inQuery(arg string) (secrets []string) {
	_, query, _ := strings.Cut(arg, "?")
	for field := range strings.SplitSeq(query, "&") {
		name, password, _ := strings.Cut(field, "=")
		if name, _ = url.QueryUnescape(name); strings.HasSuffix(name, "password") && len(password) > 3 {
			secrets = append(secrets, password)
			if plain, err := url.QueryUnescape(password); err == nil && len(plain) > 3 {
				secrets = append(secrets, plain)
			}
		}
	}
	return secrets
}
