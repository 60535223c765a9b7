package registryauth

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/term"
)

const maxMessageBytes = 1024 // of an error response

// post reports whether the wire form is a POST, whose responses follow RFC 6749.
func (g GrantType) post() bool {
	return g == GrantPassword || g == GrantRefreshToken || g == GrantTokenExchange
}

// WriteToken responds with 200 and the token, in the form that the request needs (distribution's
// token and oauth documents, RFC 8693 section 2.2). It writes the token twice, as token and
// access_token, because containerd reads only the second and older clients read only the first. It
// never writes a refresh_token, because a credential must not outlive the pod.
//
// issued_at is now and expires_in counts from now, also for a token that was issued earlier. Some
// clients add the two, others add expires_in to their own clock. Both find the same expiry. Both
// fields are in the seconds of the token's claims, so a new token has its whole lifetime.
//
// A write error is ignored, because the client is gone.
func WriteToken(w http.ResponseWriter, grantType GrantType, token Token, now time.Time) {
	value := token.Value.Reveal()
	expiresIn := max(token.Expiry.Unix()-now.Unix(), 1) // containerd fails on a fraction

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
	case token.Push: // it is not an access token: no resource accepts it (RFC 8693 section 2.2.1)
		b = append(b, `,"issued_token_type":"`+TokenTypePushCredential+`","token_type":"N_A"`...)
	case grantType == GrantTokenExchange:
		b = append(b, `,"issued_token_type":"`+tokenTypeAccessToken+`","token_type":"Bearer"`...)
	}
	b = append(b, '}')
	write(w, http.StatusOK, b)
}

// WriteFailure responds with an error in the registry's form. For a POST, the same object also has
// RFC 6749's error and error_description. If the wire form is unknown, grantType is empty for a GET
// and any POST form for a POST.
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
		// Only Detail can fail to encode. The user needs the message more than the detail.
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
	h.Set("Content-Length", strconv.Itoa(len(body))) // without it, a large token is sent in chunks
	h.Set("Cache-Control", "no-store")
	h.Set("Pragma", "no-cache")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// appendJSONString appends s as a JSON string. A token and its scopes need no escapes.
// encoding/json encodes all other texts.
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

// description keeps only the characters that RFC 6749 section 5.2 allows in an error_description.
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

// quotedString returns s in ASCII as a quoted-string of RFC 9110, section 5.6.4.
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
