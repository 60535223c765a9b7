package registryauth

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/distribution/distribution/v3/registry/auth/token"

	"github.com/pullpass/pullpass/internal/registryauth/signing"
)

// ErrGrantEnded says that the incoming token has expired, so no token may be issued for it.
var ErrGrantEnded = errors.New("the incoming token has ended")

// IssuerConfig describes the tokens of one registry.
type IssuerConfig struct {
	Issuer   string        // iss, as in the registry's auth.token.issuer
	Service  string        // aud, as in the registry's auth.token.service
	Lifetime time.Duration // at least signing.MinLifetime
	Keys     signing.Keys  // also decides how the registry trusts the tokens
	// NamesHolder makes the tokens name their holder, for the gateway. Other registries do not need
	// it, and may log the tokens that they receive.
	NamesHolder bool
	Now         func() time.Time
}

// Issuer signs the tokens of one registry. It is safe for concurrent use.
type Issuer struct {
	issuer      string
	service     string
	lifetime    time.Duration
	keys        signing.Keys
	namesHolder bool
	now         func() time.Time
}

// NewIssuer checks cfg and reports all its faults at once. A nil Now means
// time.Now.
func NewIssuer(cfg IssuerConfig) (*Issuer, error) {
	var faults []error
	if cfg.Issuer == "" {
		faults = append(faults, errors.New("issuer is empty: set the name that the registry expects in iss"))
	}
	if cfg.Service == "" {
		faults = append(faults, errors.New("service is empty: set the registry's service, the aud of its tokens"))
	}
	if cfg.Lifetime < signing.MinLifetime {
		faults = append(faults, fmt.Errorf("token lifetime %s is too short: the token specification asks for %s at least", cfg.Lifetime, signing.MinLifetime))
	}
	if cfg.Keys == nil {
		faults = append(faults, errors.New("there are no keys to sign with"))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Issuer{issuer: cfg.Issuer, service: cfg.Service, lifetime: cfg.Lifetime, keys: cfg.Keys, namesHolder: cfg.NamesHolder, now: cfg.Now}, nil
}

// claims are the claims of the token, as distribution reads them. It embeds distribution's type,
// whose fields are signed. Two fields replace fields of that type.
type claims struct {
	token.ClaimSet
	// A plain string: distribution 2 reads only a string, distribution 3 and zot read a string or a
	// list, and AudienceList writes a list.
	Audience string `json:"aud"`
	// Not pointers: each pointer would be an allocation for each token.
	Access []token.ResourceActions `json:"access"`
	Holder *Holder                 `json:"pullpass,omitempty"`
}

// Issue signs a token with exactly the contents of grant.
//
// The token expires after the configured lifetime, or with the incoming token if that is sooner.
// But it lives for at least signing.MinLifetime: the token specification forbids less, and clients
// rely on that. So a token can outlive the incoming token by less than 60 seconds.
//
// Errors: ErrGrantEnded; signing.ErrNoSigningKey; others are faults of the caller.
func (i *Issuer) Issue(grant Grant) (Token, error) {
	now := i.now()
	if !grant.NotAfter.IsZero() && !now.Before(grant.NotAfter) {
		return Token{}, fmt.Errorf("%w at %s", ErrGrantEnded, grant.NotAfter.UTC().Format(time.RFC3339))
	}
	scopes, err := sortedAccess(grant.Access)
	if err != nil {
		return Token{}, err
	}
	key, err := i.keys.Signing()
	if err != nil {
		return Token{}, err
	}

	issuedAt := now.UTC().Truncate(time.Second)
	expiry := issuedAt.Add(i.lifetime)
	if !grant.NotAfter.IsZero() && grant.NotAfter.Before(expiry) {
		expiry = grant.NotAfter
	}
	if soonest := issuedAt.Add(signing.MinLifetime); expiry.Before(soonest) {
		expiry = soonest
	}
	if !key.NotAfter.IsZero() && key.NotAfter.Before(expiry) {
		expiry = key.NotAfter // the registry refuses the token after that; Signing leaves signing.MinLifetime
	}
	expiry = expiry.UTC().Truncate(time.Second)

	body := claims{
		ClaimSet: token.ClaimSet{
			Issuer:     i.issuer,
			Subject:    grant.Subject,
			Expiration: expiry.Unix(),
			NotBefore:  issuedAt.Unix(),
			IssuedAt:   issuedAt.Unix(),
			JWTID:      rand.Text(),
		},
		Audience: i.service,
		Access:   make([]token.ResourceActions, len(scopes)),
	}
	for n, scope := range scopes {
		body.Access[n] = token.ResourceActions(scope)
	}
	if i.namesHolder {
		body.Holder = grant.Holder
	}
	payload, err := json.Marshal(body)
	if err != nil {
		return Token{}, fmt.Errorf("token claims: %w", err)
	}
	value, err := key.Sign(payload)
	if err != nil {
		return Token{}, err
	}
	return Token{
		Value:    NewSecret(value),
		ID:       body.JWTID,
		KeyID:    key.ID,
		IssuedAt: issuedAt,
		Expiry:   expiry,
		Access:   scopes,
	}, nil
}

// sortedAccess returns a sorted copy, so that equal grants give equal claims. An incomplete scope
// is a fault of the caller and is never signed.
func sortedAccess(granted []Scope) ([]Scope, error) {
	scopes := make([]Scope, len(granted))
	for n, scope := range granted {
		if scope.Type == "" || scope.Name == "" || len(scope.Actions) == 0 || slices.Contains(scope.Actions, "") {
			return nil, fmt.Errorf("granted scope %q of type %q: type, name or actions are missing", scope.Name, scope.Type)
		}
		if !slices.IsSorted(scope.Actions) {
			scope.Actions = slices.Sorted(slices.Values(scope.Actions))
		}
		scopes[n] = scope
	}
	slices.SortStableFunc(scopes, func(a, b Scope) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Class, b.Class), cmp.Compare(a.Name, b.Name))
	})
	return scopes, nil
}

// Service returns the aud claim of the tokens.
func (i *Issuer) Service() string { return i.service }

// Keys returns the keys that sign the tokens.
func (i *Issuer) Keys() signing.Keys { return i.keys }

// NamesHolder reports whether tokens name their holder.
func (i *Issuer) NamesHolder() bool { return i.namesHolder }

// KeyID returns the id of the present signing key. An error wraps signing.ErrNoSigningKey.
func (i *Issuer) KeyID() (string, error) {
	key, err := i.keys.Signing()
	if err != nil {
		return "", err
	}
	return key.ID, nil
}
