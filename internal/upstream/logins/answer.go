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

	"github.com/pullpass/pullpass/internal/redact"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/term"
)

const (
	maxReadBytes = 4 << 10 // of an error's text, in search of secrets
	maxToldBytes = 400     // … and of what is told of it
)

// JSON sends a request and decodes the answer into what into points to. An answer
// other than 200 is an error with what it says, without the secrets that it repeats.
func JSON(client *http.Client, request *http.Request, into any, secrets ...registryauth.Secret) error {
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "pullpass")
	response, err := client.Do(request)
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
	if json.Unmarshal(body, into) != nil { // whose error could repeat a part of it
		return fmt.Errorf("%s answers what is not the JSON that it should be", request.URL.Host)
	}
	return nil
}

// Refusal is the error that an answer other than 200 is.
func Refusal(host string, status int, body []byte, secrets ...registryauth.Secret) error {
	text := fmt.Sprintf("%s answers %d %s", host, status, http.StatusText(status))
	if said := said(body); said != "" {
		text += ": " + said
	}
	return Failure(errors.New(text), secrets...)
}

// said returns what an error document says, in the forms that OAuth 2.0, Entra, Quay,
// Artifactory and registries have for one. Other documents are for browsers.
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
	if json.Unmarshal(body, &document) != nil {
		return ""
	}
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

// failure is what may be told of an error.
type failure struct {
	text  string
	cause error // nil, or one of package context
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.cause }

// Failure returns an error with what may be told of err: on one line, not too long,
// and without secrets, these or others that look like tokens. Of its causes only
// those of package context are kept: others could print what it must not.
func Failure(err error, secrets ...registryauth.Secret) error {
	known := make([]string, len(secrets))
	for i, secret := range secrets {
		known[i] = secret.Reveal()
	}
	text := err.Error()
	text = text[:min(len(text), maxReadBytes)]
	// A part of a token at the cut is cut once more.
	text = redact.Message(strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " "), known...)
	told := &failure{text: term.Abbreviate(text, maxToldBytes)}
	for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, cause) {
			told.cause = cause
		}
	}
	return told
}

// assumed is the life of a login that does not say when it ends: those who are known
// to leave it out give an hour.
const assumed = 30 * time.Minute

// Expiry returns when a token ends: after so many seconds, if the answer says so, or
// else when the token does, or else early.
func Expiry(now time.Time, seconds int64, token string) time.Time {
	if seconds > 0 && seconds < 1<<31 {
		return now.Add(time.Duration(seconds) * time.Second)
	}
	if end := End(token); !end.IsZero() {
		return end
	}
	return now.Add(assumed)
}

// End returns when a JWT says that it ends, or the zero time. Nothing is verified: it
// is for tokens that are sent back to whom they are from.
func End(token string) time.Time {
	expiry := claimsOf(token).Expiry
	if expiry <= 0 || expiry > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(expiry), 0)
}

// Subject returns the subject of a JWT, or nothing. Nothing is verified.
func Subject(token string) string { return claimsOf(token).Subject }

type claims struct {
	Expiry  float64 `json:"exp"`
	Subject string  `json:"sub"`
}

// claimsOf returns what can be read of a JWT, or the zero claims.
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
