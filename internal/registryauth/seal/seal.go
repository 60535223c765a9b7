// Package seal encrypts data that clients carry between replicas, or back to the same replica:
// addresses of uploads, credentials of CI jobs. Replicas need to store nothing.
//
// The key is derived from a registry's signing key. So only the replicas that sign for the registry
// have it.
package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

// ErrSealed says that the text was not sealed with these keys for this purpose and binding, or that
// it has expired.
var ErrSealed = errors.New("it was not sealed here, for another or for something else, or too long ago")

// Box seals for one purpose. It is safe for concurrent use.
type Box struct {
	purpose string

	mu   sync.Mutex
	keys []sealingKey
}

type sealingKey struct {
	id   string
	aead cipher.AEAD
}

// NewBox returns a Box. It does not open texts that were sealed for another purpose.
func NewBox(purpose string) *Box { return &Box{purpose: purpose} }

// use returns the keys, the one for sealing first. A revoked key is not among them, because its
// thief could seal texts that would be trusted.
func (b *Box) use(keys signing.Keys) ([]sealingKey, error) {
	shared := keys.Shared()
	if len(shared) == 0 {
		return nil, signing.ErrNoSigningKey
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if slices.EqualFunc(b.keys, shared, func(k sealingKey, key *signing.SigningKey) bool { return k.id == key.ID }) {
		return b.keys, nil
	}
	var next []sealingKey
	for _, key := range shared {
		secret, err := key.Derived(b.purpose)
		if err != nil {
			return nil, err
		}
		block, err := aes.NewCipher(secret)
		if err != nil {
			return nil, err
		}
		aead, err := cipher.NewGCMWithRandomNonce(block)
		if err != nil {
			return nil, err
		}
		next = append(next, sealingKey{key.ID, aead})
	}
	b.keys = next
	return next, nil
}

// Seal returns base64url text that only Open can read, until the given second. bound is the context
// of the text. It is not part of the text, and Open needs the same value. An error wraps
// signing.ErrNoSigningKey, or is an internal fault.
func (b *Box) Seal(keys signing.Keys, plain, bound string, until time.Time) (string, error) {
	all, err := b.use(keys)
	if err != nil {
		return "", err
	}
	content := binary.BigEndian.AppendUint64(nil, uint64(until.Unix()))
	content = append(content, plain...)
	return base64.RawURLEncoding.EncodeToString(all[0].aead.Seal(nil, nil, content, []byte(bound))), nil //nolint:gosec // the cipher makes its own random nonce
}

// Open returns the sealed text. The error is ErrSealed, or one that Seal can return.
func (b *Box) Open(keys signing.Keys, sealed, bound string, now time.Time) (string, error) {
	all, err := b.use(keys)
	if err != nil {
		return "", err
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(sealed)
	if err != nil || strings.ContainsAny(sealed, "\r\n") { // which encoding/base64 skips
		return "", ErrSealed
	}
	for _, key := range all {
		content, err := key.aead.Open(nil, nil, raw, []byte(bound))
		if err != nil || len(content) < 8 {
			continue
		}
		if end := time.Unix(int64(binary.BigEndian.Uint64(content)), 0); !now.Before(end) {
			break
		}
		return string(content[8:]), nil
	}
	return "", ErrSealed
}
