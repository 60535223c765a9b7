package registryauth

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/term"
)

const maxMessageBytes = 1024 // of an error answer

// post reports whether the wire form is a POST, whose answers follow RFC 6749.
func (g GrantType) post() bool {
	return g == GrantPassword || g == GrantRefreshToken || g == GrantTokenExchange
}

// WriteToken answers 200 with the token, as the wire form of the request wants it
// (distribution's token and oauth documents, RFC 8693 section 2.2). It writes the
// token twice, as token and access_token: containerd reads only the second one,
// older clients only the first. It never writes a refresh_token: nothing may
// outlive the pod.
//
// issued_at is now and expires_in counts from now, also for a token that was
// issued earlier: so a client that adds the two, and one that adds expires_in to
// its own clock, find the same end.
//
// A write error is dropped: the client is gone.
func WriteToken(w http.ResponseWriter, grantType GrantType, token Token, now time.Time) {
	value := token.Value.Reveal()
	expiresIn := max(int64(token.Expiry.Sub(now)/time.Second), 1) // containerd fails on a fraction

	b := make([]byte, 0, 2*len(value)+512)
	const start = `{"token":`
	b = append(b, start...)
	b = appendJSONString(b, value)
	quoted := b[len(start):]
	b = append(b, `,"access_token":`...)
	b = append(b, quoted...)
	b = append(b, `,"expires_in":`...)
	b = strconv.AppendInt(b, expiresIn, 10)
	b = append(b, `,"issued_at":"`...)
	b = now.UTC().AppendFormat(b, time.RFC3339)
	b = append(b, '"')
	if grantType.post() {
		var scope []byte
		for i, s := range token.Access {
			if i > 0 {
				scope = append(scope, ' ')
			}
			scope = s.append(scope)
		}
		b = append(b, `,"scope":`...)
		b = appendJSONString(b, string(scope))
	}
	switch {
	case token.Push: // it is no access token: no resource takes it (RFC 8693 section 2.2.1)
		b = append(b, `,"issued_token_type":"`+TokenTypePushCredential+`","token_type":"N_A"`...)
	case grantType == GrantTokenExchange:
		b = append(b, `,"issued_token_type":"`+tokenTypeAccessToken+`","token_type":"Bearer"`...)
	}
	b = append(b, '}')
	write(w, http.StatusOK, b)
}

// WriteFailure answers with an error: the registry's form always, and in the same
// object RFC 6749's error and error_description if the wire form is a POST. For a
// request whose wire form is not known, grantType is empty on a GET, and any of
// the POST forms on a POST.
func WriteFailure(w http.ResponseWriter, grantType GrantType, f Failure) {
	type item struct {
		Code    string `json:"code"`
		Message string `json:"message"`
		Detail  any    `json:"detail,omitempty"`
	}
	answer := struct {
		Errors      []item `json:"errors"`
		Error       string `json:"error,omitempty"`
		Description string `json:"error_description,omitempty"`
	}{Errors: []item{{Code: f.Code, Message: term.Cut(f.Message, maxMessageBytes), Detail: f.Detail}}}
	if grantType.post() {
		answer.Error = f.OAuthError
		answer.Description = description(answer.Errors[0].Message)
	}
	body, err := json.Marshal(answer)
	if err != nil {
		// Only Detail can fail. The user needs the message more than the detail.
		answer.Errors[0].Detail = nil
		body, _ = json.Marshal(answer)
	}
	if f.BasicRealm != "" {
		w.Header().Set("WWW-Authenticate", "Basic realm="+quotedString(f.BasicRealm))
	}
	if f.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((f.RetryAfter+time.Second-1)/time.Second), 10))
	}
	write(w, f.Status, body)
}

func write(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body))) // or a token is large enough to be sent in chunks
	h.Set("Cache-Control", "no-store")
	h.Set("Pragma", "no-cache")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// appendJSONString appends s as a JSON string. A token and its scopes need no
// escapes; whatever does is left to encoding/json.
func appendJSONString(b []byte, s string) []byte {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' || s[i] == '"' || s[i] == '\\' {
			escaped, _ := json.Marshal(s) // cannot fail for a string
			return append(b, escaped...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// description keeps to the characters that RFC 6749 section 5.2 allows in an
// error_description.
func description(message string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '"':
			return '\''
		case r < ' ' || r > '~' || r == '\\':
			return '?'
		}
		return r
	}, message)
}

// quotedString is s as RFC 9110 section 5.6.4 quotes it, in ASCII.
func quotedString(s string) string {
	b := []byte{'"'}
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~':
			b = append(b, '?')
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}
