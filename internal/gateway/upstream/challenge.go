package upstream

import (
	"net/http"
	"net/url"
	"strings"
)

const (
	maxChallengeBytes = 8 << 10
	maxParameters     = 16
)

// scheme is the authentication scheme of an upstream.
type scheme int

const (
	schemeNone scheme = iota // no credential is required
	schemeBasic
	schemeBearer
	schemeUnknown // a scheme that the gateway does not support
)

// challenge holds the challenge of an upstream (RFC 9110 section 11.6.1).
type challenge struct {
	scheme  scheme
	realm   *url.URL // of schemeBearer: its token endpoint
	service string
}

func (c challenge) equal(other challenge) bool {
	if c.scheme != other.scheme || c.service != other.service || (c.realm == nil) != (other.realm == nil) {
		return false
	}
	return c.realm == nil || c.realm.String() == other.realm.String()
}

// challengeOf returns the challenge of a response that the gateway supports. It prefers Bearer to
// Basic, because a token is for one repository and a password for all.
func challengeOf(header http.Header) challenge {
	found := challenge{scheme: schemeUnknown}
	for _, line := range header.Values("WWW-Authenticate") {
		if len(line) > maxChallengeBytes {
			continue
		}
		for name, parameters := range challenges(line) {
			switch {
			case strings.EqualFold(name, "Bearer"):
				realm, err := url.Parse(parameters["realm"])
				if err == nil && realm.Host != "" && realm.User == nil {
					// A copy: an unquoted service is a part of the line, and would keep all of it.
					return challenge{scheme: schemeBearer, realm: realm, service: strings.Clone(parameters["service"])}
				}
			case strings.EqualFold(name, "Basic"):
				found = challenge{scheme: schemeBasic}
			}
		}
	}
	return found
}

// challenges calls yield for each challenge in a header line, until the line cannot be parsed
// further. The names of parameters are in lower case. If a name is repeated, its first value
// counts.
func challenges(line string) func(yield func(name string, parameters map[string]string) bool) {
	return func(yield func(string, map[string]string) bool) {
		rest := strings.TrimLeft(line, " \t,")
		for rest != "" {
			name := token(rest)
			if name == "" {
				return
			}
			rest = strings.TrimLeft(rest[len(name):], " \t")
			parameters := map[string]string{}
			for {
				key := token(rest)
				after := strings.TrimLeft(rest[len(key):], " \t")
				if key == "" || !strings.HasPrefix(after, "=") {
					break // the next challenge begins
				}
				value, left, ok := parameterValue(strings.TrimLeft(after[1:], " \t"))
				if !ok || len(parameters) == maxParameters {
					return
				}
				key = strings.ToLower(key)
				if _, twice := parameters[key]; !twice {
					parameters[key] = value
				}
				rest = strings.TrimLeft(left, " \t,")
			}
			if !yield(name, parameters) {
				return
			}
		}
	}
}

// parameterValue cuts a token or a quoted string from the start of s.
func parameterValue(s string) (value, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		value = token(s)
		return value, s[len(value):], value != ""
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:], true
		case '\\':
			if i++; i == len(s) {
				return "", "", false
			}
		}
		b.WriteByte(s[i])
	}
	return "", "", false
}

// token returns the token (RFC 9110 section 5.6.2) at the start of s.
func token(s string) string {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || 'z' < c) && (c < 'A' || 'Z' < c) && (c < '0' || '9' < c) && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return s[:i]
		}
	}
	return s
}
