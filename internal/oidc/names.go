package oidc

import "github.com/pullpass/pullpass/internal/term"

// maxQuotedBytes bounds each value of a token that a message or a Claimed
// repeats. Names of Kubernetes objects fit.
const maxQuotedBytes = 256

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// quote returns s for a message.
func quote(s string) string { return term.Quote(s, maxQuotedBytes) }

// cut bounds a value that a stranger chose.
func cut(s string) string { return term.Abbreviate(s, maxQuotedBytes) }
