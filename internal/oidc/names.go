package oidc

import "github.com/pullpass/pullpass/internal/base/term"

// maxQuotedBytes bounds each value of a token in a message or a Claimed. Names of Kubernetes
// objects fit.
const maxQuotedBytes = 256

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// quote returns s for a message.
func quote(s string) string { return term.Quote(s, maxQuotedBytes) }

// cut bounds an untrusted value.
func cut(s string) string { return term.Abbreviate(s, maxQuotedBytes) }
