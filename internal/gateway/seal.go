package gateway

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pullpass/pullpass/internal/signing"
)

const (
	sealPurpose = "pullpass gateway: addresses of upstreams, v1"
	sealedFor   = 24 * time.Hour // the longest push
)

// sealer hides the addresses of an upstream's uploads and pages in addresses of ours,
// so that nothing has to be remembered of them. What it seals, every replica with the
// same keys opens, for the same subject, repository and purpose, until its end, or that
// of the key. It is safe for concurrent use.
type sealer struct {
	mu   sync.Mutex
	keys []sealingKey
}

type sealingKey struct {
	id   string
	aead cipher.AEAD
}

var errSealed = errors.New("it was not sealed here, for another or for something else, or too long ago")

// use returns the keys, the one to seal with first. A key that was revoked is not among
// them: who has it could seal addresses that the gateway would ask for.
func (s *sealer) use(keys signing.Keys) ([]sealingKey, error) {
	shared := keys.Shared()
	if len(shared) == 0 {
		return nil, signing.ErrNoSigningKey
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.EqualFunc(s.keys, shared, func(k sealingKey, key *signing.SigningKey) bool { return k.id == key.ID }) {
		return s.keys, nil
	}
	var next []sealingKey
	for _, key := range shared {
		secret, err := key.Derived(sealPurpose)
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
	s.keys = next
	return next, nil
}

// seal returns text that only open makes sense of. bound is what it is for: it is not
// in it, and must be the same again.
func (s *sealer) seal(keys signing.Keys, plain, bound string, now time.Time) (string, error) {
	all, err := s.use(keys)
	if err != nil {
		return "", err
	}
	content := binary.BigEndian.AppendUint64(nil, uint64(now.Add(sealedFor).Unix()))
	content = append(content, plain...)
	return base64.RawURLEncoding.EncodeToString(all[0].aead.Seal(nil, nil, content, []byte(bound))), nil
}

// open returns what was sealed.
func (s *sealer) open(keys signing.Keys, sealed, bound string, now time.Time) (string, error) {
	all, err := s.use(keys)
	if err != nil {
		return "", err
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(sealed)
	if err != nil {
		return "", errSealed
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
	return "", errSealed
}
