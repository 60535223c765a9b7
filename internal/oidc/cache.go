package oidc

import (
	"cmp"
	"crypto/sha256"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/lru"
	"github.com/pullpass/pullpass/internal/oidc/identity"
)

// defaultCacheBytes is enough for 100,000 tokens with names of usual length.
const defaultCacheBytes = 64 << 20

// cache remembers verified tokens by their SHA-256; it never holds a token. When it is full, it
// drops the tokens that were used least recently.
//
// Refusals are not remembered. They can become untrue (a key appears, nbf passes), and clients
// could fill the cache with invalid tokens.
type cache struct {
	entries *lru.Cache[[sha256.Size]byte, remembered]
}

// verified is an accepted token, with every fact of its acceptance that time can change.
type verified struct {
	identity  Identity
	notBefore time.Time
	issuer    *issuer
	key       *key
}

// remembered is a verified token whose texts are one string. A large cluster has 100,000 of them.
type remembered struct {
	issuer   *issuer
	key      *key
	external *identity.External // nil: a ServiceAccount
	// text holds the names of the identity, one after the other. Each ends where the next begins.
	// It holds no part of the token, so the token does not stay in memory.
	text      string
	ends      [9]uint16
	namespace uint16 // where the namespace ends, within the subject of a ServiceAccount

	issuedAt, expiry, notBefore int64 // seconds since 1970
}

// remember expects names that were checked: only then their lengths fit.
func (v *verified) remember() remembered {
	id := &v.identity
	r := remembered{
		issuer: v.issuer, key: v.key, external: id.External,
		namespace: uint16(len(subjectPrefix) + len(id.Kubernetes.Namespace)),
		issuedAt:  id.IssuedAt.Unix(), expiry: id.Expiry.Unix(), notBefore: v.notBefore.Unix(),
	}
	parts := [len(r.ends)]string{id.Subject, id.TokenID, id.Kubernetes.ServiceAccount.UID, id.Kubernetes.Pod.Name, id.Kubernetes.Pod.UID, id.Kubernetes.Node.Name, id.Kubernetes.Node.UID,
		id.Kubernetes.Secret.Name, id.Kubernetes.Secret.UID}
	end := 0
	for i, part := range parts {
		end += len(part)
		r.ends[i] = uint16(end)
	}
	var text strings.Builder
	text.Grow(end)
	for _, part := range parts {
		text.WriteString(part)
	}
	r.text = text.String()
	return r
}

func (r *remembered) verified() verified {
	part := func(i int) string { return r.text[r.ends[i-1]:r.ends[i]] }
	v := verified{
		identity: Identity{
			Cluster:  r.issuer.Cluster,
			Issuer:   r.issuer.URL,
			Subject:  r.text[:r.ends[0]],
			TokenID:  part(1),
			External: r.external,
			IssuedAt: unixTime(r.issuedAt),
			Expiry:   unixTime(r.expiry),
		},
		notBefore: unixTime(r.notBefore),
		issuer:    r.issuer,
		key:       r.key,
	}
	if r.external == nil {
		v.identity.Kubernetes = KubernetesIdentity{Namespace: r.text[len(subjectPrefix):r.namespace],
			ServiceAccount: ObjectRef{Name: r.text[r.namespace+1 : r.ends[0]], UID: part(2)},
			Pod:            ObjectRef{Name: part(3), UID: part(4)},
			Node:           ObjectRef{Name: part(5), UID: part(6)},
			Secret:         ObjectRef{Name: part(7), UID: part(8)}}
	}
	return v
}

// bytes returns the size of the memory that r points to and owns.
func (r *remembered) bytes() int {
	bytes := lru.Bytes(len(r.text))
	if r.external != nil {
		bytes += r.external.Bytes()
	}
	return bytes
}

func newCache(bytes int) *cache {
	bytes = cmp.Or(bytes, defaultCacheBytes)
	return &cache{lru.New(bytes, func(_ [sha256.Size]byte, r remembered) int { return r.bytes() })}
}

// find returns the token if it is still acceptable: it has not expired, and the issuer still
// publishes its key and confirmed that recently enough. Otherwise the token is verified again,
// which finds the reason to refuse it.
func (c *cache) find(hash [sha256.Size]byte, now time.Time) (verified, bool) {
	r, ok := c.entries.Get(hash)
	if !ok {
		return verified{}, false
	}
	v := r.verified()
	if now.Before(v.notBefore) || !now.Before(v.identity.Expiry) || v.issuer.keys.believed(now).find(v.key.id) != v.key {
		c.entries.Remove(hash)
		return verified{}, false
	}
	return v, true
}

func (c *cache) add(hash [sha256.Size]byte, v *verified) { c.entries.Add(hash, v.remember()) }
