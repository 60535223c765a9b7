package oidc

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/refusal"
)

// maxSubjectBytes is the longest sub of an External. A sub of GitLab contains the path of a project
// and the name of a branch.
const maxSubjectBytes = 512

// hashPrefix begins the id of a token without a jti.
const hashPrefix = "sha256:"

// ignoredHeader returns the header members that are ignored. x5t names a certificate of the key,
// but the key is found by kid alone (RFC 7515, section 4.1.7). GitHub and Azure write x5t. The list
// never contains a member that could select another key or change the meaning of a signature: jku,
// jwk, x5u, x5c, crit, b64.
func (i *issuer) ignoredHeader() []string {
	if i.Provider == nil {
		return nil
	}
	return []string{"x5t", "x5t#S256"}
}

// verifyExternal does the work of verifyClaims for an issuer with a Provider. The issuer's profile
// defines the claims.
func (i *issuer) verifyExternal(t *token, now time.Time) (Identity, *Error) {
	c := &t.claims
	if fault := c.externalFault(i.Provider.Profile); fault != "" {
		return Identity{}, &Error{Reason: refusal.TokenClaims, Message: "the token's " + fault}
	}
	for _, check := range [...]func(*issuer, *claims, time.Time) *Error{
		(*issuer).verifyAudience, (*issuer).verifyTime, (*issuer).verifyLifetime,
	} {
		if refused := check(i, c, now); refused != nil {
			return Identity{}, refused
		}
	}
	all, err := identity.Parse(t.payload)
	if err != nil {
		return Identity{}, &Error{Reason: refusal.TokenClaims, Message: "the token " + err.Error()}
	}
	external, refused := i.external(all)
	if refused != nil {
		return Identity{}, refused
	}
	return Identity{
		Subject:  external.Provider + "/" + c.Subject,
		TokenID:  t.id(),
		External: external,
		IssuedAt: unixTime(c.IssuedAt),
		Expiry:   unixTime(c.Expiry),
	}, nil
}

// external returns the caller that complete claims identify. It checks them against the profile and
// the configuration.
func (i *Issuer) external(all identity.Claims) (*identity.External, *Error) {
	external, err := i.Provider.Profile.External(i.Provider.Name, all)
	if err != nil {
		return nil, &Error{Reason: refusal.TokenClaims, Message: "the token's " + err.Error()}
	}
	if claim, unmet := all.Unmet(i.Provider.Require); unmet {
		return nil, &Error{
			Reason:  refusal.TokenRequire,
			Message: fmt.Sprintf("the token's claim %s is not what %s requires (identities[].require)", quote(claim), i.title()),
		}
	}
	return external, nil
}

// IdentifyClaims checks claims without their token, of an issuer with a Provider. The payload has
// the form of a token's payload. The signature and the times are not checked. iss, sub, aud and jti
// are checked only if they are present. The error is an *Error.
func (i *Issuer) IdentifyClaims(payload []byte) (Identity, error) {
	id, refused := i.identifyClaims(payload)
	if refused != nil {
		refused.Provider = i.Provider.Name
		return Identity{}, refused
	}
	return id, nil
}

func (i *Issuer) identifyClaims(payload []byte) (Identity, *Error) {
	refuse := func(format string, args ...any) (Identity, *Error) {
		return Identity{}, &Error{Reason: refusal.TokenClaims, Message: "the token" + fmt.Sprintf(format, args...)}
	}
	if !utf8.Valid(payload) {
		return refuse(" is not UTF-8")
	}
	all, err := identity.Parse(payload)
	if err != nil {
		return refuse(" %v", err)
	}
	switch issuer, ok := all["iss"]; {
	case !ok:
		all["iss"] = i.URL // some profiles compare other claims with it
	case issuer != i.URL:
		return Identity{}, &Error{Reason: refusal.TokenUnknownIssuer, Message: fmt.Sprintf("the token's issuer is not that of %s, %s (identities[].issuer)", i.title(), quote(i.URL))}
	}
	external, refused := i.external(all)
	if refused != nil {
		return Identity{}, refused
	}
	c, err := parseClaims(payload)
	if err != nil { // aud, or a time with a fraction
		return refuse(" has a claim of another type than issuers give it: %v", boundedError(err))
	}
	if _, ok := all["sub"]; ok && c.Subject == "" {
		return refuse("'s %s", missing("sub"))
	}
	if fault := c.nameFault(); fault != "" {
		return refuse("'s %s", fault)
	}
	if _, ok := all["aud"]; ok {
		if refused := i.verifyAudience(&c, time.Time{}); refused != nil {
			return Identity{}, refused
		}
	}
	return Identity{Issuer: i.URL, Subject: external.Provider + "/" + c.Subject, TokenID: c.TokenID, External: external}, nil
}

// externalFault does the work of fault for tokens of an issuer with a Provider. iss is present: it
// selected the issuer.
func (c *claims) externalFault(p identity.Profile) string {
	if c.Subject == "" {
		return missing("sub")
	}
	if fault := c.nameFault(); fault != "" {
		return fault
	}
	optional := []string{"nbf"}
	if !p.RequiresIssuedAt() {
		optional = append(optional, "iat")
	}
	return c.registeredFault(optional...)
}

// nameFault checks sub, jti and aud if they are present.
func (c *claims) nameFault() string {
	if len(c.Subject) > maxSubjectBytes || strings.ContainsFunc(c.Subject, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Sprintf(`claim "sub" must be at most %d bytes of printable characters`, maxSubjectBytes)
	}
	if strings.HasPrefix(c.TokenID, hashPrefix) {
		return fmt.Sprintf(`claim "jti" begins with %q, as only the ids of tokens without a jti do`, hashPrefix)
	}
	return c.optionalFault()
}

// id returns the token's jti or, if it has none, a name that is unique to the token. That name is a
// hash of the signed part. The signature is not part of it: each ECDSA signature has a second valid
// form, which must not count as a different token.
func (t *token) id() string {
	if t.claims.TokenID != "" {
		return t.claims.TokenID
	}
	hash := sha256.Sum256([]byte(t.signed))
	return hashPrefix + hex.EncodeToString(hash[:])
}
