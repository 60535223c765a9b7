package registryauth

import (
	"crypto/sha256"
	"fmt"
	"log/slog"
)

const redacted = "[redacted]"

// Secret is a credential or a token. No formatting, logging or encoding shows its value. Only
// Reveal does. The zero Secret holds no value.
//
// The methods below redact a Secret that fmt, slog or an encoder can reach. They are not enough:
// fmt prints unexported fields of a struct by reflection without calling methods, and also does
// that for the verb p. So the value is held by a function, of which reflection prints the address.
//
// Secrets are not comparable with ==, because functions are not.
type Secret struct {
	reveal func() (value string, hash [sha256.Size]byte)
}

// SecretBytes is the size of the memory that a Secret points to, without the bytes of its value: a
// function, a string and a hash.
const SecretBytes = 8 + 16 + sha256.Size

// usualTokenBytes is more than the size of tokens of API servers.
const usualTokenBytes = 2 << 10

// NewSecret wraps s.
func NewSecret(s string) Secret {
	if s == "" {
		return Secret{}
	}
	var buffer [usualTokenBytes]byte // on the stack, unlike []byte(s)
	hash := sha256.Sum256(append(buffer[:0], s...))
	return Secret{func() (string, [sha256.Size]byte) { return s, hash }}
}

// Reveal returns the value. Reviewers must check every call.
func (s Secret) Reveal() string {
	if s.reveal == nil {
		return ""
	}
	value, _ := s.reveal()
	return value
}

// Hash returns the SHA-256 of the value, which serves as a key for caches. For the zero Secret it
// returns zeros, which are not the hash of any value.
func (s Secret) Hash() [sha256.Size]byte {
	if s.reveal == nil {
		return [sha256.Size]byte{}
	}
	_, hash := s.reveal()
	return hash
}

// IsZero reports whether there is no value.
func (s Secret) IsZero() bool { return s.reveal == nil }

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
