package exchange

import (
	"encoding/base64"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/pullpass/pullpass/internal/redact"
)

// secrets returns what a request brought as its credential, as it stands in the
// header and as it was read. Nothing of it may be written down, wherever the
// client put it a second time.
func (t *tokenRequest) secrets() [2]string {
	header := t.http.Header.Get("Authorization")
	if !t.parsed.Credential.IsZero() {
		return [2]string{header, t.parsed.Credential.Reveal()}
	}
	// The request could not be read, but perhaps this part of it can.
	_, value, _ := strings.Cut(header, " ")
	decoded, _ := base64.StdEncoding.DecodeString(value)
	return [2]string{header, string(decoded)}
}

// redact keeps credentials out of the event: every field that can hold a text
// of the client's choice passes here, after the last one was set. What a good
// token says is the word of its issuer, and stays.
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
			s.Remedy = "" // half a command could be run all the same
		}
	}
	e.Message = redact.Message(e.Message, secrets[:]...)
	if e.Proof != nil {
		e.Proof.Message = redact.Message(e.Proof.Message, secrets[:]...) // a certificate has names of the caller's choice
	}
	if c := e.Claimed; c != nil {
		for _, field := range []*string{&c.Issuer, &c.Subject, &c.Pod, &c.Node, &c.Secret} {
			*field = redact.Text(*field, secrets[:]...)
		}
		c.CredentialID = credentialID(redact.Text(strings.TrimPrefix(c.CredentialID, "JTI="), secrets[:]...))
	}
}

// RedactSpan replaces what whoever traces requests has noted before the
// credential was known.
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
