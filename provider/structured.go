package provider

import (
	"encoding/base64"
	"strconv"
	"strings"
)

// member of a list in a structured field: an item with its parameters. Values are int64, float64, string, token,
// []byte and bool. Values of types that no rate limit field has stay text.
type member struct {
	value      any
	parameters map[string]any
}

type token string

// parseList reads a structured field (RFC 9651) that is a list of items. An empty one is a list without members. Inner
// lists are none of items. ok is false if anything is malformed.
func parseList(field string) (list []member, ok bool) {
	p := parser{strings.Trim(field, " ")}
	for p.rest != "" {
		m := member{parameters: map[string]any{}}
		if m.value, ok = p.bareItem(); !ok {
			return nil, false
		}
		for p.next(';') {
			p.rest = strings.TrimLeft(p.rest, " ")
			key := p.take(func(i int, c byte) bool {
				return lower(c) || c == '*' || i > 0 && (digit(c) || c == '_' || c == '-' || c == '.')
			})
			if key == "" {
				return nil, false
			}
			var value any = true
			if p.next('=') {
				if value, ok = p.bareItem(); !ok {
					return nil, false
				}
			}
			m.parameters[key] = value
		}
		list = append(list, m)
		p.rest = strings.TrimLeft(p.rest, " \t")
		if p.rest == "" {
			break
		}
		if !p.next(',') {
			return nil, false
		}
		p.rest = strings.TrimLeft(p.rest, " \t")
		if p.rest == "" || len(list) == mostQuotas {
			return nil, false
		}
	}
	return list, true
}

type parser struct{ rest string }

func digit(c byte) bool { return '0' <= c && c <= '9' }
func lower(c byte) bool { return 'a' <= c && c <= 'z' }

// next takes c if it is the next byte.
func (p *parser) next(c byte) bool {
	if p.rest == "" || p.rest[0] != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

// take takes bytes as long as they are of a kind.
func (p *parser) take(kind func(i int, c byte) bool) string {
	i := 0
	for i < len(p.rest) && kind(i, p.rest[i]) {
		i++
	}
	s := p.rest[:i]
	p.rest = p.rest[i:]
	return s
}

func (p *parser) bareItem() (any, bool) {
	if p.rest == "" {
		return nil, false
	}
	switch c := p.rest[0]; {
	case c == '-' || digit(c):
		return p.number()
	case c == '"':
		return p.string()
	case c == '*' || lower(c) || 'A' <= c && c <= 'Z':
		return token(p.take(func(_ int, c byte) bool {
			return lower(c) || 'A' <= c && c <= 'Z' || digit(c) || strings.IndexByte("!#$%&'*+-.^_`|~:/", c) >= 0
		})), true
	case c == ':':
		p.rest = p.rest[1:]
		text := p.take(func(_ int, c byte) bool { return c != ':' })
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			b, err = base64.RawStdEncoding.DecodeString(text) // the padding may be missing
		}
		return b, err == nil && p.next(':')
	case c == '?':
		p.rest = p.rest[1:]
		if p.next('1') {
			return true, true
		}
		return false, p.next('0')
	case c == '@': // a date
		p.rest = p.rest[1:]
		n, ok := p.number()
		_, isInt := n.(int64)
		return token("date"), ok && isInt
	case c == '%': // a display string
		p.rest = p.rest[1:]
		s, ok := p.string()
		return token(s), ok
	}
	return nil, false
}

func (p *parser) number() (any, bool) {
	text := p.take(func(i int, c byte) bool { return digit(c) || c == '.' || i == 0 && c == '-' })
	whole, fraction, decimal := strings.Cut(strings.TrimPrefix(text, "-"), ".")
	if decimal {
		n, err := strconv.ParseFloat(text, 64)
		return n, err == nil && 0 < len(whole) && len(whole) <= 12 && 0 < len(fraction) && len(fraction) <= 3
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil && len(whole) <= 15
}

func (p *parser) string() (string, bool) {
	if !p.next('"') {
		return "", false
	}
	var b strings.Builder
	for p.rest != "" {
		c := p.rest[0]
		p.rest = p.rest[1:]
		switch {
		case c == '"':
			return b.String(), true
		case c == '\\':
			if p.rest == "" || p.rest[0] != '"' && p.rest[0] != '\\' {
				return "", false
			}
			c = p.rest[0]
			p.rest = p.rest[1:]
		case c < ' ' || c > '~':
			return "", false
		}
		b.WriteByte(c)
	}
	return "", false
}
