package exchange

import (
	"encoding/base64"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/pullpass/pullpass/internal/base/redact"
)

// secrets returns the credential of a request that was read, as sent in the header and as parsed. It
// must not be logged, even if the client repeats it in other fields.
func (t *tokenRequest) secrets() *redact.Secrets {
	if t.known == nil {
		header, credential := t.http.Header.Get("Authorization"), t.parsed.Credential.Reveal()
		if credential == "" {
			// The request could not be parsed, but the header perhaps can be.
			_, value, _ := strings.Cut(header, " ")
			decoded, _ := base64.StdEncoding.DecodeString(value)
			credential = string(decoded)
		}
		t.known = redact.Known(header, credential)
	}
	return t.known
}

// redact removes credentials from the event. It covers every field that can hold client-chosen
// text, and runs after the last field was set. The claims of a verified token come from its issuer,
// and stay.
func (e *Event) redact(secrets *redact.Secrets) {
	for _, field := range []*string{&e.Client, &e.ClientID, &e.Account} {
		*field = secrets.Text(*field)
	}
	for i := range e.Requested {
		e.Requested[i] = secrets.Text(e.Requested[i])
	}
	for i := range e.Granted {
		e.Granted[i] = secrets.Text(e.Granted[i])
	}
	if e.Trial != nil {
		for i := range e.Trial.Granted {
			e.Trial.Granted[i] = secrets.Text(e.Trial.Granted[i])
		}
	}
	for i := range e.Scopes {
		s := &e.Scopes[i]
		s.Scope, s.Reason = secrets.Text(s.Scope), secrets.Message(s.Reason)
		if secrets.Text(s.Remedy) != s.Remedy {
			s.Remedy = "" // half a command could still be run
		}
	}
	e.Message = secrets.Message(e.Message)
	if e.Proof != nil {
		e.Proof.Message = secrets.Message(e.Proof.Message) // a certificate has names that the caller chose
	}
	if c := e.Claimed; c != nil {
		for _, field := range []*string{&c.Issuer, &c.Subject, &c.Pod, &c.Node, &c.Secret} {
			*field = secrets.Text(*field)
		}
		c.CredentialID = credentialID(secrets.Text(strings.TrimPrefix(c.CredentialID, "JTI=")))
	}
}

// RedactSpan replaces attributes that the tracing middleware recorded before the credential was
// known.
func RedactSpan(span trace.Span, r *http.Request, secrets *redact.Secrets) {
	if !span.IsRecording() {
		return
	}
	for _, noted := range [...]struct{ name, value string }{{"user_agent.original", r.UserAgent()}, {"server.address", r.Host}, {"url.path", r.URL.Path}} {
		if clean := secrets.Text(noted.value); clean != noted.value {
			span.SetAttributes(attribute.String(noted.name, clean))
		}
	}
}
