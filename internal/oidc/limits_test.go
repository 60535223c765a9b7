package oidc

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/refusal"
)

// A value that is as long as its limit is allowed.
func TestLimitsThemselvesAreAllowed(t *testing.T) {
	t.Parallel()
	if fault := (&claims{Subject: strings.Repeat("a", maxSubjectBytes)}).nameFault(); fault != "" {
		t.Errorf("the longest sub: %s", fault)
	}
	if data, err := readAll(strings.NewReader("abc"), 3); err != nil || string(data) != "abc" {
		t.Errorf("the longest document: %q, %v", data, err)
	}
	if text := strings.Repeat("a", maxCauseBytes); bounded(errors.New(text)).Error() != text {
		t.Error("the longest cause is cut")
	}
	for values, want := range map[string]string{"a": `"a"`, "a b c": `"a", "b", "c"`, "a b c d e": `"a", "b", "c", 2 more`} {
		if got := quoteList(strings.Fields(values), ", "); got != want {
			t.Errorf("quoteList(%s) = %s", values, got)
		}
	}
	f := newFixture(t, nil)
	refuse(t, f.Verifier, strings.Repeat(".", MaxTokenBytes), refusal.TokenMalformed, "the credential is not a token")
	header := `{"alg":"RS256","kid":"rsa"}`
	accept(t, f.Verifier, keys().rsa.signHeader(t, header+strings.Repeat(" ", maxHeaderBytes-len(header)), payload(t, "kubelet")))
	refuse(t, f.Verifier, keys().rsa.signHeader(t, `{"alg":"RS256","kid":"`+strings.Repeat("k", maxKeyIDBytes)+`"}`, payload(t, "kubelet")), refusal.TokenUnknownKey, "")
	longest := validIssuer(f.file)
	longest.Cluster, longest.Audiences = strings.Repeat("a", maxNameBytes), []string{strings.Repeat("a", maxAudienceBytes)}
	longest.PullSecrets = PullSecrets{strings.Repeat("b", maxAudienceBytes), []string{"*"}}
	if _, err := New(Config{Issuers: []Issuer{longest}}); err != nil {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{"azAZ09.-_": true, "": false, "a b": false, "a{": false, "a[": false, "a:": false, "a/": false, "a@": false, "a`": false} {
		if isName(name) != want {
			t.Errorf("%q: %t", name, !want)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	err := &Error{Reason: refusal.IssuerUnavailable, Message: "a", Err: io.EOF}
	if err.Error() != "a: EOF" || !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrInvalidToken) || !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	err = &Error{Reason: refusal.TokenClaims, Message: "a"}
	if err.Error() != "a" || errors.Is(err, ErrUnavailable) || !errors.Is(err, ErrInvalidToken) || errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if name := (&Identity{External: &identity.External{Provider: "ci"}}).IssuerName(); name != "ci" {
		t.Errorf("the issuer of an identity is %q", name)
	}
}
