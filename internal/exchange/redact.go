package exchange

import (
	"encoding/base64"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/pullpass/pullpass/internal/base/redact"
)

// secrets returns the credential of a request, as sent in the header and as parsed. It must not be
// logged, even if the client repeats it in other fields.
func (t *tokenRequest) secrets() [2]string {
	header := t.http.Header.Get("Authorization")
	if !t.parsed.Credential.IsZero() {
		return [2]string{header, t.parsed.Credential.Reveal()}
	}
	// The request could not be parsed, but the header perhaps can be.
	_, value, _ := strings.Cut(header, " ")
	decoded, _ := base64.StdEncoding.DecodeString(value)
	return [2]string{header, string(decoded)}
}

// redact removes credentials from the event. It covers every field that can hold client-chosen
// text, and runs after the last field was set. The claims of a verified token come from its issuer,
// and stay.
func (e *Event) redact(secrets [2]string) {
	for _, field := range []*string{&e.Client, &e.ClientID, &e.Account} {
		*field = redact.Text(*field, secrets[:]...)
	}
	for i := range e.Requested {
		e.Requested[i] = redact.Text(e.Requested[i], secrets[:]...)
	}
	for i := range e.Granted {
		e.Granted[i] = redact.Text(e.Granted[i], secrets[:]...)
	}
	for i := range e.Scopes {
		s := &e.Scopes[i]
		s.Scope, s.Reason = redact.Text(s.Scope, secrets[:]...), redact.Message(s.Reason, secrets[:]...)
		if redact.Text(s.Remedy, secrets[:]...) != s.Remedy {
			s.Remedy = "" // half a command could still be run
		}
	}
	e.Message = redact.Message(e.Message, secrets[:]...)
	if e.Proof != nil {
		e.Proof.Message = redact.Message(e.Proof.Message, secrets[:]...) // a certificate has names that the caller chose
	}
	if c := e.Claimed; c != nil {
		for _, field := range []*string{&c.Issuer, &c.Subject, &c.Pod, &c.Node, &c.Secret} {
			*field = redact.Text(*field, secrets[:]...)
		}
		c.CredentialID = credentialID(redact.Text(strings.TrimPrefix(c.CredentialID, "JTI="), secrets[:]...))
	}
}

// RedactSpan replaces attributes that the tracing middleware recorded before the credential was
// known.
func RedactSpan(span trace.Span, r *http.Request, secrets ...string) {
	if !span.IsRecording() {
		return
	}
	for _, noted := range [...]struct{ name, value string }{{"user_agent.original", r.UserAgent()}, {"server.address", r.Host}} {
		if clean := redact.Text(noted.value, secrets...); clean != noted.value {
			span.SetAttributes(attribute.String(noted.name, clean))
		}
	}
}
