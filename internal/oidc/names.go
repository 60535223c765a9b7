package oidc

import (
	"strconv"
	"strings"
)

const (
	maxLabelBytes     = 63  // RFC 1123
	maxSubdomainBytes = 253 // what Kubernetes allows as an object's name

	// maxQuotedBytes bounds each value of a token that a message or a Claimed
	// repeats. Names of Kubernetes objects fit.
	maxQuotedBytes = 256
)

// isLabel reports whether s is a DNS label as RFC 1123 defines it, in lower
// case: the form of a namespace's name.
func isLabel(s string) bool {
	if s == "" || len(s) > maxLabelBytes {
		return false
	}
	return isLabelText(s)
}

// isSubdomain reports whether s is a DNS subdomain in lower case: the form of
// the names of ServiceAccounts, pods, nodes and Secrets. Kubernetes does not
// limit a label within it, only the whole.
func isSubdomain(s string) bool {
	if s == "" || len(s) > maxSubdomainBytes {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || !isLabelText(label) {
			return false
		}
	}
	return true
}

func isLabelText(s string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return s[0] != '-' && s[len(s)-1] != '-'
}

// isPrintable reports whether s holds only visible ASCII characters, so that
// it can stand in a log line or a key as it is.
func isPrintable(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

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
