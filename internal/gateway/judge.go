package gateway

import (
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/distribution/v3/registry/auth/token"
	"github.com/go-jose/go-jose/v4"

	"github.com/pullpass/pullpass/internal/base/lru"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

const (
	judgedBytes = 8 << 20 // of valid tokens: some thousands
	// trustAge is the maximum age of the keys that tokens are judged by.
	trustAge = time.Second
)

// algorithms are those that Pullpass signs with. No other algorithm is accepted.
var algorithms = []jose.SignatureAlgorithm{jose.ES256, jose.RS256, jose.EdDSA}

// bearer is the holder and the access of a token.
type bearer struct {
	subject   string
	holder    *registryauth.Holder // nil: anonymous
	revocable []*oidc.Identity     // must not be changed
	tokenID   string
	access    []registryauth.Scope
	until     time.Time
}

// may reports whether the token allows an action on a repository.
func (b *bearer) may(name, action string) bool {
	return slices.ContainsFunc(b.access, func(s registryauth.Scope) bool {
		return s.Type == "repository" && s.Name == name && (slices.Contains(s.Actions, action) || slices.Contains(s.Actions, "*"))
	})
}

// judge verifies tokens like a registry that trusts Pullpass: by distribution's own code, and by
// the keys of the gateway's service alone.
type judge struct {
	issuer, service string
	keys            signing.Keys
	now             func() time.Time
	judged          *lru.Cache[[sha256.Size]byte, *judgedToken]
	latest          *latestTrust
}

// latestTrust holds the keys by which tokens were judged last, also by a previous judge. Remembered
// tokens stay valid as long as these keys are the same.
type latestTrust struct {
	mu    sync.Mutex
	trust *trust
	from  signing.Keys
	by    *signing.SigningKey // that signed then; nil: none
	at    time.Time
}

// trust holds the trusted keys of a registry. It never changes: a new one replaces it.
type trust struct {
	keys         map[string]crypto.PublicKey
	roots        *x509.CertPool
	certificates []*x509.Certificate
}

// judgedToken is the result for a token, with all that it depends on.
type judgedToken struct {
	bearer
	issuer, service string
	by              *trust
	from            time.Time // it is not valid before, as when the clock is set back
}

func newJudged() *lru.Cache[[sha256.Size]byte, *judgedToken] {
	return lru.New(judgedBytes, func(_ [sha256.Size]byte, j *judgedToken) int {
		held := lru.Bytes(2 << 10)
		for _, scope := range j.access {
			held += lru.Bytes(len(scope.Name)) + 64*(1+len(scope.Actions))
		}
		return held
	})
}

// trusted returns the current trust. It is the same pointer as long as the keys are the same. A key that
// now signs is trusted at once: its first token may be here already.
func (j *judge) trusted() *trust {
	l := j.latest
	l.mu.Lock()
	defer l.mu.Unlock()
	now := j.now()
	by, _ := j.keys.Signing()
	if l.from == j.keys && l.by == by && now.Sub(l.at) < trustAge {
		return l.trust
	}
	bundle := j.keys.Trusted()
	next := &trust{keys: map[string]crypto.PublicKey{}, roots: x509.NewCertPool(), certificates: bundle.Certificates}
	for _, key := range bundle.JWKS.Keys {
		next.keys[key.KeyID] = key.Key
	}
	for _, root := range bundle.Certificates {
		next.roots.AddCert(root)
	}
	if l.trust == nil || !l.trust.equal(next) {
		l.trust = next
	}
	l.from, l.by, l.at = j.keys, by, now
	return l.trust
}

func (t *trust) equal(other *trust) bool {
	if len(t.keys) != len(other.keys) || !slices.EqualFunc(t.certificates, other.certificates, (*x509.Certificate).Equal) {
		return false
	}
	for id := range t.keys { // an id is the key's thumbprint
		if other.keys[id] == nil {
			return false
		}
	}
	return true
}

// credentialOf returns the token of a request, or zero if there is none. Errors are *rejection.
func credentialOf(header http.Header) (registryauth.Secret, error) {
	values := header.Values("Authorization")
	if len(values) == 0 {
		return registryauth.Secret{}, nil
	}
	scheme, value, _ := strings.Cut(values[0], " ")
	value = strings.TrimSpace(value)
	if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") || value == "" {
		return registryauth.Secret{}, errNoToken
	}
	return registryauth.NewSecret(value), nil
}

var errNoToken = &rejection{
	reason: refusal.TokenInvalid, code: "UNAUTHORIZED", challenge: "invalid_token",
	message: "the credential is not a token of the gateway's token endpoint; request one there",
}

// known returns the bearer of a token that was judged before, if that result still holds.
func (j *judge) known(credential registryauth.Secret) (*bearer, bool) {
	found, ok := j.judged.Get(credential.Hash())
	now := j.now()
	if !ok || found.issuer != j.issuer || found.service != j.service || found.by != j.trusted() || now.Before(found.from) || !now.Before(found.until) {
		return nil, false
	}
	return &found.bearer, true
}

// verify verifies a token and returns its holder and access. Errors are *rejection.
func (j *judge) verify(credential registryauth.Secret) (*bearer, error) {
	by := j.trusted()
	if !by.mayLead(credential.Reveal()) {
		return nil, errNoToken
	}
	parsed, err := token.NewToken(credential.Reveal(), algorithms)
	if err != nil {
		return nil, errNoToken
	}
	claims, err := parsed.Verify(token.VerifyOptions{
		TrustedIssuers: []string{j.issuer}, AcceptedAudiences: []string{j.service}, Roots: by.roots, TrustedKeys: by.keys,
	})
	if err != nil {
		return nil, errNoToken
	}
	var own struct {
		Holder *registryauth.Holder `json:"pullpass"`
	}
	if err := parsed.JWT.UnsafeClaimsWithoutVerification(&own); err != nil || (claims.Subject == "") != (own.Holder == nil) {
		return nil, errNoToken
	}
	found := &judgedToken{
		issuer: j.issuer, service: j.service, by: by, from: time.Unix(claims.NotBefore, 0).Add(-token.Leeway),
		bearer: bearer{
			subject: claims.Subject, holder: own.Holder, revocable: revocable(claims.JWTID, claims.Subject, own.Holder), tokenID: claims.JWTID,
			until: time.Unix(claims.Expiration, 0).Add(token.Leeway),
		},
	}
	for _, a := range claims.Access {
		if a != nil {
			found.access = append(found.access, registryauth.Scope(*a))
		}
	}
	j.judged.Add(credential.Hash(), found)
	return &found.bearer, nil
}
