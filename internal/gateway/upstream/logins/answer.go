package logins

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/pullpass/pullpass/internal/base/redact"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/registryauth"
)

const (
	maxReadBytes = 4 << 10 // of an error's text, searched for secrets
	maxToldBytes = 400     // of an error's text, logged
)

// JSON sends a request and decodes the response into the value that into points to. A response
// other than 200 is an error with its text, without the secrets that it repeats.
func JSON(client *http.Client, request *http.Request, into any, secrets ...registryauth.Secret) error {
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "pullpass")
	response, err := client.Do(request) //nolint:gosec // to the address of the configuration
	if err != nil {
		return Failure(err, secrets...)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return Failure(fmt.Errorf("%s answers: %w", request.URL.Host, err), secrets...)
	}
	if response.StatusCode != http.StatusOK {
		return Refusal(request.URL.Host, response.StatusCode, body, secrets...)
	}
	if json.Unmarshal(body, into) != nil { // the error could quote a part of the body
		return fmt.Errorf("%s answers what is not the JSON that it should be", request.URL.Host)
	}
	return nil
}

// Refusal returns the error for a response other than 200.
func Refusal(host string, status int, body []byte, secrets ...registryauth.Secret) error {
	text := fmt.Sprintf("%s answers %d %s", host, status, http.StatusText(status))
	if said := said(body); said != "" {
		text += ": " + said
	}
	return Failure(errors.New(text), secrets...)
}

// said returns the message of an error document, in the forms of OAuth 2.0, Entra, Quay,
// Artifactory and registries. Other documents are for browsers.
func said(body []byte) string {
	var document struct {
		Error       json.RawMessage `json:"error"` // a text, or an object with a message
		Description string          `json:"error_description"`
		Message     string          `json:"message"`
		Detail      string          `json:"detail"`
		Errors      []struct {
			Message string `json:"message"`
		} `json:"errors"`
	}
	_ = json.Unmarshal(body, &document) // of an unknown document, nothing is told
	var code string
	_ = json.Unmarshal(document.Error, &code)
	var inner struct {
		Message string `json:"message"`
	}
	_ = json.Unmarshal(document.Error, &inner)
	if len(document.Errors) > 0 {
		inner.Message = cmp.Or(inner.Message, document.Errors[0].Message)
	}
	return cmp.Or(document.Description, inner.Message, document.Message, document.Detail, code)
}

// failure is the loggable form of an error.
type failure struct {
	text  string
	cause error // nil, or one of package context
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.cause }

// Failure returns an error with a loggable text of err: one line, bounded, and without the given
// secrets or others that look like tokens. A service writes a part of it, so it has no character
// that a terminal could act on. It keeps only causes of package context. Other causes could print
// secrets.
func Failure(err error, secrets ...registryauth.Secret) error {
	known := make([]string, len(secrets))
	for i, secret := range secrets {
		known[i] = secret.Reveal()
	}
	text := err.Error()
	text = text[:min(len(text), maxReadBytes)]
	// The abbreviation below removes a partial token at the cut.
	text = redact.Known(known...).Message(strings.Map(printable, strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")))
	told := &failure{text: term.Abbreviate(text, maxToldBytes)}
	for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, cause) {
			told.cause = cause
		}
	}
	return told
}

func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return '?'
}

// assumed is the lifetime of a login without an expiry. The known services that leave it out issue
// logins for an hour.
const assumed = 30 * time.Minute

// Expiry returns the expiry of a token: after the given seconds if they are valid, or else the
// expiry in the token, or else an early assumption.
func Expiry(now time.Time, seconds int64, token string) time.Time {
	if seconds > 0 && seconds < 1<<31 {
		return now.Add(time.Duration(seconds) * time.Second)
	}
	if end := End(token); !end.IsZero() {
		return end
	}
	return now.Add(assumed)
}

// End returns the expiry in a JWT, or the zero time. It verifies nothing: it is for tokens that are
// only sent back to their issuer.
func End(token string) time.Time {
	expiry := claimsOf(token).Expiry
	if expiry <= 0 || expiry > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(expiry), 0)
}

// Subject returns the subject of a JWT, or "". It verifies nothing.
func Subject(token string) string { return claimsOf(token).Subject }

type claims struct {
	Expiry  float64 `json:"exp"`
	Subject string  `json:"sub"`
}

// claimsOf returns the claims that can be read from a JWT, or the zero claims.
func claimsOf(token string) claims {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return claims{}
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	var read claims
	if err != nil || json.Unmarshal(payload, &read) != nil {
		return claims{}
	}
	return read
}
