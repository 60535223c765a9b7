package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

var (
	errNoEndpoint = errors.New("answered 200 without asking for a token: anybody is let in there; take the registry out of PULLPASS_REGISTRIES, or unset PULLPASS_PUSH")
	errChallenges = errors.New("asks for a token in more than one way (WWW-Authenticate)")
	errChallenge  = errors.New(`asks for a token without an https realm and a service, or not as RFC 9110 writes it (WWW-Authenticate: Bearer realm="https://…",service="…")`)
)

// endpoint asks a registry for its token endpoint, and the service that the registry
// is there.
func (a asker) endpoint(ctx context.Context, api string) (realm, service string, err error) {
	answered, err := a.ask(ctx, http.MethodGet, api, nil, "")
	switch {
	case err != nil:
		return "", "", err
	case answered.status == http.StatusOK:
		return "", "", errNoEndpoint
	case answered.status != http.StatusUnauthorized:
		return "", "", fmt.Errorf("answered %d, and should have asked for a token with 401", answered.status)
	}
	bearer, others := "", []string{}
	for _, challenge := range answered.header.Values("WWW-Authenticate") {
		switch scheme, parameters, _ := strings.Cut(challenge, " "); {
		case !strings.EqualFold(scheme, "Bearer"):
			others = append(others, fmt.Sprintf("%.20q", scheme))
		case bearer != "":
			return "", "", errChallenges
		default:
			bearer = parameters + " " // there was one
		}
	}
	if bearer == "" {
		return "", "", fmt.Errorf("answered 401, and names no token endpoint (WWW-Authenticate: Bearer), but the schemes [%s]; "+
			"only registries that have Pullpass as token endpoint take a push credential", strings.Join(others, " "))
	}
	parameters, ok := parseParameters(bearer)
	address, err := url.Parse(parameters["realm"])
	if !ok || err != nil || address.Scheme != "https" || address.Host == "" || address.User != nil || address.Fragment != "" || parameters["service"] == "" {
		return "", "", errChallenge
	}
	return address.String(), parameters["service"], nil
}

// parseParameters reads the parameters of a challenge (RFC 9110, section 11.2), each
// of which may come once.
func parseParameters(s string) (parameters map[string]string, ok bool) {
	parameters = map[string]string{}
	for s = strings.Trim(s, " \t"); ; s = strings.TrimLeft(s[1:], " \t") {
		name, rest, found := strings.Cut(s, "=")
		name = strings.ToLower(name)
		if _, again := parameters[name]; !found || again || !isToken(name) {
			return nil, false
		}
		value := ""
		if value, s, ok = cutValue(rest); !ok {
			return nil, false
		}
		parameters[name] = value
		if s = strings.TrimLeft(s, " \t"); s == "" {
			return parameters, true
		}
		if s[0] != ',' {
			return nil, false
		}
	}
}

// cutValue cuts a token or a quoted string off (RFC 9110, section 5.6).
func cutValue(s string) (value, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		end := strings.IndexAny(s, ", \t")
		if end < 0 {
			end = len(s)
		}
		return s[:end], s[end:], isToken(s[:end])
	}
	var unquoted strings.Builder
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			return unquoted.String(), s[i+1:], true
		case '\\':
			if i++; i == len(s) {
				return "", "", false
			}
		}
		unquoted.WriteByte(s[i])
	}
	return "", "", false
}

func isToken(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return r <= ' ' || '~' < r || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}
