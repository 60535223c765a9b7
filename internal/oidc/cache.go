package oidc

import (
	"crypto/sha256"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

const defaultCacheSize = 100_000

// cache remembers verified tokens by their SHA-256; it never holds a token. It
// is bounded by what was used least recently.
//
// Refusals are not remembered: they can become untrue (a key appears, nbf
// passes), and strangers could fill the cache with them.
type cache struct {
	entries *lru.Cache[[sha256.Size]byte, *verified]
}

// verified is a token that was accepted, with all of its acceptance that time
// can change.
type verified struct {
	identity  Identity
	notBefore time.Time
	issuer    *issuer
	key       *key
}

func newCache(size int) (*cache, error) {
	if size == 0 {
		size = defaultCacheSize
	}
	entries, err := lru.New[[sha256.Size]byte, *verified](size)
	if err != nil {
		return nil, err
	}
	return &cache{entries}, nil
}

// find returns the token if it is still acceptable: not expired, and signed
// with a key that the issuer still publishes and that is not too old.
// Otherwise the token is judged anew, which finds the reason to refuse it.
func (c *cache) find(hash [sha256.Size]byte, now time.Time) *verified {
	v, ok := c.entries.Get(hash)
	if !ok {
		return nil
	}
	if now.Before(v.notBefore) || !now.Before(v.identity.Expiry) || v.issuer.keys.believed(now).find(v.key.id) != v.key {
		c.entries.Remove(hash)
		return nil
	}
	return v
}

func (c *cache) add(v *verified) { c.entries.Add(v.identity.TokenHash, v) }
