package registryauth

import (
	"fmt"
	"log/slog"
)

const redacted = "[redacted]"

// Secret is a credential or a token. No formatting, logging or encoding shows
// its value; only Reveal does. The zero Secret holds no value.
//
// The methods below redact a Secret that fmt, slog or an encoder can reach. They
// are not enough: fmt prints the unexported fields of a struct by reflection and
// calls no methods there, and neither does it for the verb p. So the value sits
// behind a pointer, of which reflection prints the address.
//
// Secrets are not comparable with ==, which would compare those addresses.
type Secret struct {
	_     [0]func()
	value *string
}

// NewSecret wraps s.
func NewSecret(s string) Secret {
	if s == "" {
		return Secret{}
	}
	return Secret{value: &s}
}

// Reveal returns the value. Every call is a place to review.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsZero reports whether there is no value.
func (s Secret) IsZero() bool { return s.value == nil }

// String returns a fixed text, never the value; so do the methods that follow.
func (s Secret) String() string { return redacted }

// GoString is what %#v prints.
func (s Secret) GoString() string { return redacted }

// LogValue is what slog records.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText is what JSON, YAML and XML encoders write.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// Format is what fmt prints for every other verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }
