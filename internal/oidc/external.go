package oidc

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pullpass/pullpass/internal/identity"
)

// maxSubjectBytes is the longest sub of an External: those of GitLab have the path
// of a project and the name of a branch in them.
const maxSubjectBytes = 512

// hashPrefix begins the id of a token whose issuer gives it none.
const hashPrefix = "sha256:"

// ignoredHeader returns the members of a header that say nothing here. x5t names a
// certificate of the key, which is found by kid alone (RFC 7515, section 4.1.7);
// GitHub and Azure write it. Whatever could lead to another key, or change what a
// signature means, is never among them: jku, jwk, x5u, x5c, crit, b64.
func (i *issuer) ignoredHeader() []string {
	if i.Provider == nil {
		return nil
	}
	return []string{"x5t", "x5t#S256"}
}

// judgeExternal is judgeClaims for an issuer whose tokens are of others than pods.
// Its profile says what their claims are.
func (i *issuer) judgeExternal(t *token, now time.Time) (Identity, *Error) {
	c := &t.claims
	if fault := c.checkExternal(i.Provider.Profile); fault != "" {
		return Identity{}, &Error{Reason: ReasonClaims, Message: "the token's " + fault}
	}
	for _, check := range [...]func(*issuer, *claims, time.Time) *Error{
		(*issuer).checkAudience, (*issuer).checkTime, (*issuer).checkLifetime,
	} {
		if refusal := check(i, c, now); refusal != nil {
			return Identity{}, refusal
		}
	}
	all, err := identity.Parse(t.payload)
	if err != nil {
		return Identity{}, &Error{Reason: ReasonClaims, Message: "the token " + err.Error()}
	}
	external, refusal := i.external(all)
	if refusal != nil {
		return Identity{}, refusal
	}
	return Identity{
		Subject:  external.Provider + "/" + c.Subject,
		TokenID:  t.id(),
		External: external,
		IssuedAt: unixTime(c.IssuedAt),
		Expiry:   unixTime(c.Expiry),
	}, nil
}

// external is whom complete claims identify: as the profile knows them, and as the
// configuration requires them.
func (i *Issuer) external(all identity.Claims) (*identity.External, *Error) {
	external, err := i.Provider.Profile.External(i.Provider.Name, all)
	if err != nil {
		return nil, &Error{Reason: ReasonClaims, Message: "the token's " + err.Error()}
	}
	if claim, unmet := all.Unmet(i.Provider.Require); unmet {
		return nil, &Error{
			Reason:  ReasonRequire,
			Message: fmt.Sprintf("the token's claim %s is not what %s requires (identities[].require)", quote(claim), i.title()),
		}
	}
	return external, nil
}

// IdentifyClaims judges claims of an issuer with a Provider that come without their
// token, as the payload would have them: not the signature, and no times. Of iss, sub,
// aud and jti, those are judged that are there. The error is an *Error.
func (i *Issuer) IdentifyClaims(payload []byte) (Identity, error) {
	id, refusal := i.identifyClaims(payload)
	if refusal != nil {
		refusal.Provider = i.Provider.Name
		return Identity{}, refusal
	}
	return id, nil
}

func (i *Issuer) identifyClaims(payload []byte) (Identity, *Error) {
	refuse := func(format string, args ...any) (Identity, *Error) {
		return Identity{}, &Error{Reason: ReasonClaims, Message: "the token" + fmt.Sprintf(format, args...)}
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
		all["iss"] = i.URL // some profiles compare others with it
	case issuer != i.URL:
		return Identity{}, &Error{Reason: ReasonUnknownIssuer, Message: fmt.Sprintf("the token's issuer is not that of %s, %s (identities[].issuer)", i.title(), quote(i.URL))}
	}
	external, refusal := i.external(all)
	if refusal != nil {
		return Identity{}, refusal
	}
	c, err := parseClaims(payload)
	if err != nil { // aud, or a time with a fraction
		return refuse(" has a claim of another type than issuers give it: %v", boundedError(err))
	}
	if fault := c.checkNames(); fault != "" {
		return refuse("'s %s", fault)
	}
	if _, ok := all["aud"]; ok {
		if refusal := i.checkAudience(&c, time.Time{}); refusal != nil {
			return Identity{}, refusal
		}
	}
	return Identity{Issuer: i.URL, Subject: external.Provider + "/" + c.Subject, TokenID: c.TokenID, External: external}, nil
}

// checkExternal is check for tokens of others than pods. iss is not missing: it has
// led here.
func (c *claims) checkExternal(p identity.Profile) string {
	if c.Subject == "" {
		return missing("sub")
	}
	if fault := c.checkNames(); fault != "" {
		return fault
	}
	optional := []string{"nbf"}
	if !p.RequiresIssuedAt() {
		optional = append(optional, "iat")
	}
	return c.checkRegistered(optional...)
}

// checkNames checks sub, jti and aud where they are there.
func (c *claims) checkNames() string {
	if len(c.Subject) > maxSubjectBytes || strings.ContainsFunc(c.Subject, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Sprintf(`claim "sub" must be at most %d bytes of printable characters`, maxSubjectBytes)
	}
	if strings.HasPrefix(c.TokenID, hashPrefix) {
		return fmt.Sprintf(`claim "jti" begins with %q, as only the ids of tokens without a jti do`, hashPrefix)
	}
	return c.checkPresent()
}

// id returns the token's jti or, if it has none, a name that only this token has.
// It is made of what the signature covers: of an ECDSA signature there is always a
// second one that is as good, and it must not make another token.
func (t *token) id() string {
	if t.claims.TokenID != "" {
		return t.claims.TokenID
	}
	hash := sha256.Sum256([]byte(t.signed))
	return hashPrefix + hex.EncodeToString(hash[:])
}
