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

// scheme is how an upstream wants to be asked.
type scheme int

const (
	schemeNone scheme = iota // it answers everybody
	schemeBasic
	schemeBearer
	schemeUnknown // it wants what the gateway does not have
)

// challenge is what an upstream wants (RFC 9110 section 11.6.1).
type challenge struct {
	scheme  scheme
	realm   *url.URL // of schemeBearer: its token endpoint
	service string
}

// challengeOf returns the one challenge of an answer that the gateway meets, Bearer
// before Basic: a token is for one repository and a password for all.
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
					return challenge{scheme: schemeBearer, realm: realm, service: parameters["service"]}
				}
			case strings.EqualFold(name, "Basic"):
				found = challenge{scheme: schemeBasic}
			}
		}
	}
	return found
}

// challenges calls yield for each challenge of a field's line, until it cannot be
// read further. The names of parameters are in lower case; of several of a name,
// the first counts.
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
