package oidc

import (
	"strconv"
	"strings"
)

// maxQuotedBytes bounds each value of a token that a message or a Claimed
// repeats. Names of Kubernetes objects fit.
const maxQuotedBytes = 256

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// quote returns s for a message: cut, and with everything escaped that could
// forge a line of a log.
func quote(s string) string { return strconv.QuoteToASCII(cut(s)) }

// cut bounds a value that a stranger chose.
func cut(s string) string {
	if len(s) <= maxQuotedBytes {
		return s
	}
	return strings.ToValidUTF8(s[:maxQuotedBytes], "") + "..."
}
