package oidc

import (
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	legacy "github.com/go-json-experiment/json/v1"

	"github.com/pullpass/pullpass/internal/base/names"
)

// maxUnixTime is the last second of the year 9999.
const maxUnixTime = 253402300799

// claims are the claims that Verify needs. Others are tolerated, because newer API servers may add
// some.
//
// The decoder is encoding/json/v2 of Go 1.27. Unlike encoding/json, it matches names exactly and
// refuses duplicates at any depth. It refuses fractions and exponents for times. RFC 7519 allows
// them, but API servers send none, and each additional form is one more to get wrong.
type claims struct {
	Issuer     string            `json:"iss"`
	Subject    string            `json:"sub"`
	Audience   audience          `json:"aud"`
	Expiry     int64             `json:"exp"` // seconds since 1970, like the others
	IssuedAt   int64             `json:"iat"`
	NotBefore  int64             `json:"nbf"`
	TokenID    string            `json:"jti"`
	Kubernetes *kubernetesClaims `json:"kubernetes.io"`

	LegacyNamespace      string `json:"kubernetes.io/serviceaccount/namespace"`
	LegacySecret         string `json:"kubernetes.io/serviceaccount/secret.name"`
	LegacyServiceAccount string `json:"kubernetes.io/serviceaccount/service-account.name"`
	LegacyUID            string `json:"kubernetes.io/serviceaccount/service-account.uid"`
}

type kubernetesClaims struct {
	Namespace      string       `json:"namespace"`
	ServiceAccount *objectClaim `json:"serviceaccount"`
	Pod            *objectClaim `json:"pod"`
	Node           *objectClaim `json:"node"`
	Secret         *objectClaim `json:"secret"`
}

type objectClaim struct {
	Name string `json:"name"`
	UID  string `json:"uid"`
}

// parseClaims decodes a payload of valid UTF-8. With a *wrongTypeError, it also returns the claims
// that it could read.
func parseClaims(payload []byte) (claims, error) {
	var c claims
	err := json.Unmarshal(payload, &c)
	if _, ok := errors.AsType[*json.SemanticError](err); !ok {
		return c, err
	}
	// The decoder stopped at the first fault. If this is JSON at all, the log shows every readable
	// claim.
	var all claims
	again := json.Unmarshal(payload, &all, legacy.ReportErrorsWithLegacySemantics(true))
	if _, ok := errors.AsType[*legacy.SyntaxError](again); ok {
		return claims{}, again
	}
	return all, &wrongTypeError{err}
}

// wrongTypeError reports JSON in which a claim does not have its usual type.
type wrongTypeError struct{ error }

// audience is one string or a list of them (RFC 7519, section 4.1.3).
type audience []string

// UnmarshalJSONFrom reads exactly one value, even if the value is invalid.
func (a *audience) UnmarshalJSONFrom(decoder *jsontext.Decoder) error {
	value, err := decoder.ReadValue()
	if err != nil {
		return err
	}
	if value.Kind() == jsontext.KindString {
		*a = make(audience, 1)
		return json.Unmarshal(value, &(*a)[0])
	}
	return json.Unmarshal(value, (*[]string)(a))
}

// fault describes a claim that is missing, has a wrong type or form, or contradicts another claim.
// It returns an empty text if there is none.
func (c *claims) fault() string {
	for _, claim := range [...]struct{ name, value string }{{"iss", c.Issuer}, {"sub", c.Subject}, {"jti", c.TokenID}} {
		if claim.value == "" {
			return missing(claim.name)
		}
	}
	if fault := c.registeredFault(); fault != "" {
		return fault
	}
	return c.Kubernetes.fault(c.Subject)
}

// registeredFault checks the claims of RFC 7519, section 4.1, except iss and sub. The times named
// in optional may be missing. A jti may always be missing here.
func (c *claims) registeredFault(optional ...string) string {
	if fault := c.optionalFault(); fault != "" {
		return fault
	}
	if len(c.Audience) == 0 {
		return missing("aud")
	}
	for _, claim := range [...]struct {
		name  string
		value int64
	}{{"exp", c.Expiry}, {"iat", c.IssuedAt}, {"nbf", c.NotBefore}} {
		if claim.value == 0 {
			if slices.Contains(optional, claim.name) {
				continue
			}
			return missing(claim.name)
		}
		if claim.value < 0 || claim.value > maxUnixTime {
			return fmt.Sprintf("claim %q is not a time between 1970 and 9999", claim.name)
		}
	}
	if c.Expiry <= c.IssuedAt {
		return `claim "exp" must be later than "iat"`
	}
	if c.Expiry <= c.NotBefore {
		return `claim "exp" must be later than "nbf"`
	}
	return ""
}

// optionalFault checks jti and aud where they are there.
func (c *claims) optionalFault() string {
	if c.TokenID != "" && !names.IsTokenID(c.TokenID) {
		return fmt.Sprintf(`claim "jti" must be at most %d printable characters`, names.MaxTokenIDBytes)
	}
	if slices.Contains(c.Audience, "") {
		return `claim "aud" has an empty member`
	}
	return ""
}

func (k *kubernetesClaims) fault(subject string) string {
	if k == nil {
		return missing("kubernetes.io")
	}
	if !names.IsLabel(k.Namespace) {
		return `claim "kubernetes.io.namespace" is not the name of a namespace`
	}
	if k.ServiceAccount == nil {
		return missing("kubernetes.io.serviceaccount")
	}
	for _, claim := range [...]struct {
		name  string
		value *objectClaim
	}{{"serviceaccount", k.ServiceAccount}, {"pod", k.Pod}, {"node", k.Node}, {"secret", k.Secret}} {
		switch o := claim.value; {
		case o == nil: // the configuration decides which ones are required
		case !names.IsSubdomain(o.Name):
			return fmt.Sprintf(`claim "kubernetes.io.%s.name" is not the name of a Kubernetes object`, claim.name)
		case o == k.Node && o.UID == "": // see hasNode
		case !names.IsUID(o.UID):
			return fmt.Sprintf(`claim "kubernetes.io.%s.uid" must be 1 to %d printable characters`, claim.name, names.MaxUIDBytes)
		}
	}
	if want := ServiceAccountSubject(k.Namespace, k.ServiceAccount.Name); subject != want {
		return fmt.Sprintf(`claim "sub" is %s, but "kubernetes.io" says %s`, quote(subject), quote(want))
	}
	return ""
}

// hasNode reports whether the token is certainly bound to one node. If a pod's Node object does not
// exist when the token is issued, API servers write its name without a UID.
func (k *kubernetesClaims) hasNode() bool { return k.Node != nil && k.Node.UID != "" }

func missing(name string) string {
	switch name {
	case "jti":
		return `claim "jti" is missing; API servers set it since Kubernetes 1.30 (KEP-4193)`
	case "kubernetes.io":
		return `claim "kubernetes.io" is missing: this is not a ServiceAccount token`
	}
	return fmt.Sprintf("claim %q is missing", name)
}

func (o *objectClaim) ref() ObjectRef {
	if o == nil {
		return ObjectRef{}
	}
	return ObjectRef{Name: o.Name, UID: o.UID}
}

// identity returns the identity that checked claims name.
func (c *claims) identity() Identity {
	return Identity{
		Subject: c.Subject,
		TokenID: c.TokenID,
		Kubernetes: KubernetesIdentity{Namespace: c.Kubernetes.Namespace,
			ServiceAccount: c.Kubernetes.ServiceAccount.ref(),
			Pod:            c.Kubernetes.Pod.ref(),
			Node:           c.Kubernetes.Node.ref()},
		IssuedAt: unixTime(c.IssuedAt),
		Expiry:   unixTime(c.Expiry),
	}
}

// claimed returns the values of unchecked claims, for the log.
func (c *claims) claimed() Claimed {
	if c.isLegacy() {
		return c.legacyClaimed()
	}
	claimed := Claimed{Issuer: cut(c.Issuer), Subject: cut(c.Subject), TokenID: cut(c.TokenID)}
	if k := c.Kubernetes; k != nil {
		claimed.Namespace = cut(k.Namespace)
		claimed.ServiceAccount = k.ServiceAccount.ref().cut()
		claimed.Pod = k.Pod.ref().cut()
		claimed.Node = k.Node.ref().cut()
	}
	return claimed
}

func (r ObjectRef) cut() ObjectRef { return ObjectRef{Name: cut(r.Name), UID: cut(r.UID)} }
