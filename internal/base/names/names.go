// Package names validates names of Kubernetes objects and parses references to them.
//
// Tokens, policies, flags and configurations use the same functions, so that all accept the same
// names. They are written by hand, because each request calls several of them. A test compares them
// with Kubernetes' own.
package names

import (
	"fmt"
	"strings"
)

const (
	maxLabelBytes     = 63 // RFC 1123
	maxSubdomainBytes = 253
	maxTitleBytes     = 255

	// MaxUIDBytes is the longest UID of an object that a token may name.
	MaxUIDBytes = 128

	// MaxTokenIDBytes is the longest id (jti) of a token.
	MaxTokenIDBytes = 256
)

// IsLabel reports whether s is a DNS label as RFC 1123 defines it, in lower
// case: the form of the names of namespaces, and here of clusters and rules.
func IsLabel(s string) bool { return len(s) <= maxLabelBytes && isLabelText(s) }

// IsSubdomain reports whether s is a DNS subdomain in lower case: the form of
// the names of ServiceAccounts, pods, nodes and Secrets. Kubernetes does not
// limit a label within it, only the whole.
func IsSubdomain(s string) bool {
	if len(s) > maxSubdomainBytes {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if !isLabelText(label) {
			return false
		}
	}
	return true
}

func isLabelText(s string) bool {
	for _, c := range []byte(s) {
		if !isLowerAlphanumeric(c) && c != '-' {
			return false
		}
	}
	return s != "" && s[0] != '-' && s[len(s)-1] != '-'
}

// IsAnnotationKey reports whether s can be the key of an annotation: a name,
// which may have a DNS subdomain and a slash before it.
func IsAnnotationKey(s string) bool {
	prefix, name, hasPrefix := strings.Cut(s, "/")
	if !hasPrefix {
		return isQualifiedName(s)
	}
	return IsSubdomain(prefix) && isQualifiedName(name)
}

func isQualifiedName(s string) bool {
	isAlphanumeric := func(c byte) bool { return isLowerAlphanumeric(c) || 'A' <= c && c <= 'Z' }
	for _, c := range []byte(s) {
		if !isAlphanumeric(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return s != "" && len(s) <= maxLabelBytes && isAlphanumeric(s[0]) && isAlphanumeric(s[len(s)-1])
}

func isLowerAlphanumeric(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' }

// IsUID reports whether s can be the UID of an object. API servers make UUIDs
// and promise nothing about their form.
func IsUID(s string) bool { return s != "" && len(s) <= MaxUIDBytes && IsVisible(s) }

// IsDigest reports whether s is a digest by SHA-256 or SHA-512 (image specification, descriptor).
func IsDigest(s string) bool {
	sum, isSHA256 := strings.CutPrefix(s, "sha256:")
	sum, isSHA512 := strings.CutPrefix(sum, "sha512:")
	return (isSHA256 && len(sum) == 64 || isSHA512 && !isSHA256 && len(sum) == 128) && strings.Trim(sum, "0123456789abcdef") == ""
}

// IsTokenID reports whether s can be the id (jti) of a token.
func IsTokenID(s string) bool { return s != "" && len(s) <= MaxTokenIDBytes && IsVisible(s) }

// IsVisible reports whether s holds only visible ASCII characters, so that it
// can stand in a log line or a key as it is.
func IsVisible(s string) bool {
	for _, c := range []byte(s) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}

// IsTitle reports whether s is a name that may have spaces inside, such as "Docker registry": at
// most 255 printable ASCII characters.
func IsTitle(s string) bool {
	return s != "" && len(s) <= maxTitleBytes && strings.TrimSpace(s) == s &&
		!strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
}

// IsDecimal reports whether s is a number without a sign.
func IsDecimal(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// Object names an object in a namespace of a cluster.
type Object struct{ Cluster, Namespace, Name string }

// ParseObject splits CLUSTER/NAMESPACE/NAME. It does not check whether such an object can exist:
// the audit log also holds unproven names. Check does.
func ParseObject(s string) (Object, error) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return Object{}, fmt.Errorf("%q is not CLUSTER/NAMESPACE/NAME", s)
	}
	return Object{parts[0], parts[1], parts[2]}, nil
}

// String returns the form that ParseObject reads.
func (o Object) String() string { return o.Cluster + "/" + o.Namespace + "/" + o.Name }

// Check returns an error for a name that a cluster, namespace or object cannot have.
func (o Object) Check() error {
	switch {
	case !IsLabel(o.Cluster):
		return fmt.Errorf("no cluster can have the name %q", o.Cluster)
	case !IsLabel(o.Namespace):
		return fmt.Errorf("no namespace can have the name %q", o.Namespace)
	case !IsSubdomain(o.Name):
		return fmt.Errorf("no object can have the name %q", o.Name)
	}
	return nil
}
