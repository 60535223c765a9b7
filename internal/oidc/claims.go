package oidc

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"github.com/go-jose/go-jose/v4/json"
)

const (
	maxTokenIDBytes = 256
	maxUIDBytes     = 128

	// maxUnixTime is the last second of the year 9999.
	maxUnixTime = 253402300799

	subjectPrefix = "system:serviceaccount:"
)

// claims are the claims that matter here; others are tolerated, because newer
// API servers may add some. Members with a wrong type are kept as such, so that
// the refusal can name them.
//
// The decoder of go-jose matches names exactly and refuses duplicates, unlike
// encoding/json.
type claims struct {
	Issuer     text              `json:"iss"`
	Subject    text              `json:"sub"`
	Audience   audience          `json:"aud"`
	Expiry     date              `json:"exp"`
	IssuedAt   date              `json:"iat"`
	NotBefore  date              `json:"nbf"`
	TokenID    text              `json:"jti"`
	Kubernetes *kubernetesClaims `json:"kubernetes.io"`

	LegacyNamespace      text `json:"kubernetes.io/serviceaccount/namespace"`
	LegacySecret         text `json:"kubernetes.io/serviceaccount/secret.name"`
	LegacyServiceAccount text `json:"kubernetes.io/serviceaccount/service-account.name"`
	LegacyUID            text `json:"kubernetes.io/serviceaccount/service-account.uid"`
}

type kubernetesClaims struct {
	Namespace      text         `json:"namespace"`
	ServiceAccount *objectClaim `json:"serviceaccount"`
	Pod            *objectClaim `json:"pod"`
	Node           *objectClaim `json:"node"`
	Secret         *objectClaim `json:"secret"`
}

type objectClaim struct {
	Name text `json:"name"`
	UID  text `json:"uid"`
}

// parseClaims decodes a payload of valid UTF-8. With a *json.UnmarshalTypeError
// come the claims that could be read.
func parseClaims(payload []byte) (claims, error) {
	var c claims
	err := json.Unmarshal(payload, &c)
	return c, err
}

// text is a string claim.
type text struct {
	value string
	wrong bool // there, but not a string
}

// UnmarshalJSON is called with one valid JSON value.
func (t *text) UnmarshalJSON(data []byte) error {
	if data[0] != '"' {
		t.wrong = true
		return nil
	}
	if bytes.IndexByte(data, '\\') >= 0 {
		return json.Unmarshal(data, &t.value)
	}
	t.value = string(data[1 : len(data)-1])
	return nil
}

// date is a time claim in whole seconds since 1970. RFC 7519 allows fractions;
// API servers send none, and every form more is one more to get wrong.
type date struct {
	unix  int64
	there bool
}

// UnmarshalJSON is called with one valid JSON value. What is not a whole number
// in a sane range leaves unix 0, which no claim may be.
func (d *date) UnmarshalJSON(data []byte) error {
	d.there = true
	for _, c := range data {
		if c < '0' || c > '9' {
			return nil
		}
	}
	if n, err := strconv.ParseInt(string(data), 10, 64); err == nil && n <= maxUnixTime {
		d.unix = n
	}
	return nil
}

// audience is one string or a list of them (RFC 7519, section 4.1.3).
type audience struct {
	values []string
	wrong  bool
}

// UnmarshalJSON is called with one valid JSON value.
func (a *audience) UnmarshalJSON(data []byte) error {
	var list []text
	switch data[0] {
	case '"':
		list = make([]text, 1)
		if err := list[0].UnmarshalJSON(data); err != nil {
			return err
		}
	case '[':
		if err := json.Unmarshal(data, &list); err != nil {
			return err
		}
	default:
		a.wrong = true
		return nil
	}
	a.values = make([]string, len(list))
	for n, t := range list {
		a.values[n] = t.value
		a.wrong = a.wrong || t.wrong || t.value == ""
	}
	return nil
}

// check returns what is missing, of a wrong type or form, or contradicts
// another claim, in words; empty when nothing is.
func (c *claims) check() string {
	for _, claim := range []struct {
		name  string
		value text
	}{{"iss", c.Issuer}, {"sub", c.Subject}, {"jti", c.TokenID}} {
		if fault := claim.value.fault(claim.name, ""); fault != "" {
			return fault
		}
	}
	if len(c.TokenID.value) > maxTokenIDBytes || !isPrintable(c.TokenID.value) {
		return fmt.Sprintf(`claim "jti" must be at most %d printable characters`, maxTokenIDBytes)
	}
	if c.Audience.wrong {
		return `claim "aud" must be a string or a list of strings, none empty`
	}
	if len(c.Audience.values) == 0 {
		return `claim "aud" is missing`
	}
	if fault := c.checkTimes(); fault != "" {
		return fault
	}
	return c.Kubernetes.check(c.Subject.value)
}

func (c *claims) checkTimes() string {
	for _, claim := range []struct {
		name  string
		value date
	}{{"exp", c.Expiry}, {"iat", c.IssuedAt}, {"nbf", c.NotBefore}} {
		switch {
		case !claim.value.there:
			return fmt.Sprintf("claim %q is missing", claim.name)
		case claim.value.unix == 0:
			return fmt.Sprintf("claim %q must be a time in whole seconds since 1970", claim.name)
		}
	}
	if c.Expiry.unix <= c.IssuedAt.unix {
		return `claim "exp" must be later than "iat"`
	}
	if c.Expiry.unix <= c.NotBefore.unix {
		return `claim "exp" must be later than "nbf"`
	}
	return ""
}

func (k *kubernetesClaims) check(subject string) string {
	if k == nil {
		return `claim "kubernetes.io" is missing: this is not a ServiceAccount token`
	}
	if fault := k.Namespace.fault("kubernetes.io", ".namespace"); fault != "" {
		return fault
	}
	if !isLabel(k.Namespace.value) {
		return `claim "kubernetes.io.namespace" is not the name of a namespace`
	}
	if k.ServiceAccount == nil {
		return `claim "kubernetes.io.serviceaccount" is missing`
	}
	for _, claim := range []struct {
		name  string
		value *objectClaim
	}{
		{"kubernetes.io.serviceaccount", k.ServiceAccount},
		{"kubernetes.io.pod", k.Pod},
		{"kubernetes.io.node", k.Node},
		{"kubernetes.io.secret", k.Secret},
	} {
		if fault := claim.value.check(claim.name); fault != "" {
			return fault
		}
	}
	if want := k.subject(); subject != want {
		return fmt.Sprintf(`claim "sub" is %s, but "kubernetes.io" says %s`, quote(subject), quote(want))
	}
	return ""
}

// subject is unambiguous, because no name can hold a colon.
func (k *kubernetesClaims) subject() string {
	return subjectPrefix + k.Namespace.value + ":" + k.ServiceAccount.Name.value
}

// check accepts an object that is not there: which ones must be is configured.
func (o *objectClaim) check(path string) string {
	if o == nil {
		return ""
	}
	if fault := o.Name.fault(path, ".name"); fault != "" {
		return fault
	}
	if !isSubdomain(o.Name.value) {
		return fmt.Sprintf("claim %q is not the name of a Kubernetes object", path+".name")
	}
	if fault := o.UID.fault(path, ".uid"); fault != "" {
		return fault
	}
	if len(o.UID.value) > maxUIDBytes || !isPrintable(o.UID.value) {
		return fmt.Sprintf("claim %q must be at most %d printable characters", path+".uid", maxUIDBytes)
	}
	return ""
}

// fault takes the path in two pieces, to join them only when they are needed.
func (t text) fault(object, member string) string {
	switch {
	case t.wrong:
		return fmt.Sprintf("claim %q must be a string", object+member)
	case t.value != "":
		return ""
	case object == "jti":
		return `claim "jti" is missing; API servers set it since Kubernetes 1.30 (KEP-4193)`
	}
	return fmt.Sprintf("claim %q is missing", object+member)
}

func (o *objectClaim) ref() ObjectRef {
	if o == nil {
		return ObjectRef{}
	}
	return ObjectRef{Name: o.Name.value, UID: o.UID.value}
}

// identity returns what checked claims say.
func (c *claims) identity() Identity {
	subject := c.Subject.value
	// Parts of the subject, so that a remembered token holds them once.
	namespace, name, _ := strings.Cut(subject[len(subjectPrefix):], ":")
	return Identity{
		Subject:        subject,
		TokenID:        c.TokenID.value,
		Namespace:      namespace,
		ServiceAccount: ObjectRef{Name: name, UID: c.Kubernetes.ServiceAccount.UID.value},
		Pod:            c.Kubernetes.Pod.ref(),
		Node:           c.Kubernetes.Node.ref(),
		IssuedAt:       unixTime(c.IssuedAt),
		Expiry:         unixTime(c.Expiry),
	}
}

// claimed returns what unchecked claims say, for the log.
func (c *claims) claimed() Claimed {
	if c.isLegacy() {
		return c.legacyClaimed()
	}
	claimed := Claimed{Issuer: cut(c.Issuer.value), Subject: cut(c.Subject.value), TokenID: cut(c.TokenID.value)}
	if k := c.Kubernetes; k != nil {
		claimed.Namespace = cut(k.Namespace.value)
		claimed.ServiceAccount = k.ServiceAccount.ref().cut()
		claimed.Pod = k.Pod.ref().cut()
		claimed.Node = k.Node.ref().cut()
	}
	return claimed
}

func (r ObjectRef) cut() ObjectRef { return ObjectRef{Name: cut(r.Name), UID: cut(r.UID)} }
