package oidc

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/refusal"
)

// The checks below compare complete and consistent claims with the configuration of an issuer. They
// run before the signature is checked, so they can only refuse a token.

// verifyAudience refuses tokens for other recipients. The most common are tokens for the API server,
// which every pod has. One of several audiences is enough (RFC 7519, section 4.1.3).
func (i *Issuer) verifyAudience(c *claims, _ time.Time) *Error {
	for _, audience := range c.Audience {
		if slices.Contains(i.Audiences, audience) || i.PullSecrets.isAudience(audience) {
			return nil
		}
	}
	message := fmt.Sprintf("the token's audience %s is not accepted here; request a token with audience %s",
		"["+quoteList(c.Audience, ", ")+"]", quoteList(i.Audiences, " or "))
	if i.Provider == nil {
		message += " (tokenAttributes.serviceAccountTokenAudience in the kubelet's CredentialProviderConfig)"
	}
	return &Error{Reason: refusal.TokenAudience, Message: message}
}

func (i *issuer) verifyTime(c *claims, now time.Time) *Error {
	if expiry := unixTime(c.Expiry); !now.Before(expiry) {
		return &Error{
			Reason: refusal.TokenExpired,
			Message: fmt.Sprintf("the token expired at %s, %s ago; request a new one",
				expiry.Format(time.RFC3339), now.Sub(expiry).Round(time.Second)),
		}
	}
	if begin := c.notBefore(); now.Before(begin) {
		return &Error{
			Reason: refusal.TokenNotYetValid,
			Message: fmt.Sprintf("the token is valid from %s, %s from now; compare the clocks of the issuer and of this server",
				begin.Add(ClockSkew).Format(time.RFC3339), begin.Add(ClockSkew).Sub(now).Round(time.Second)),
		}
	}
	return nil
}

// verifyLifetime refuses tokens with a long lifetime. An API server extends the API-audience token
// of every pod to one year.
func (i *issuer) verifyLifetime(c *claims, now time.Time) *Error {
	issuedAt := unixTime(c.IssuedAt)
	if c.IssuedAt == 0 { // iat is optional here: identity.Profile.RequiresIssuedAt
		issuedAt = now
	}
	lifetime := unixTime(c.Expiry).Sub(issuedAt) // cannot overflow, unlike seconds times time.Second
	if i.inSecret(c) && lifetime > maxPullSecretLifetime {
		return &Error{
			Reason:  refusal.TokenLifetime,
			Message: fmt.Sprintf("the token's lifetime of %s is longer than the %s that one in a Secret may have; request a shorter one", lifetime, maxPullSecretLifetime),
		}
	}
	if lifetime <= i.MaxLifetime {
		return nil
	}
	remedy := "request a shorter one, with an audience of its own"
	if i.Provider != nil {
		remedy = "request a shorter one, give the job a shorter time-out if its token lives as long, or raise the setting"
	}
	return &Error{
		Reason: refusal.TokenLifetime,
		Message: fmt.Sprintf("the token's lifetime of %s is longer than the %s that %s allows (maxTokenLifetime); %s",
			lifetime, i.MaxLifetime, i.title(), remedy),
	}
}

func (i *issuer) verifyBinding(c *claims, _ time.Time) *Error {
	k := c.Kubernetes
	want := "a pod"
	switch {
	case i.inSecret(c):
		return i.verifyPullSecret(k)
	case i.Bound == BoundAny:
		return nil
	case k.Pod != nil:
		return nil
	case i.Bound == BoundPodOrNode:
		if k.hasNode() {
			return nil
		}
		want = "a pod or node"
	}
	is := "not bound to an object"
	switch {
	case k.Secret != nil:
		is = "bound to a Secret"
	case k.Node != nil:
		is = "bound to a node"
	}
	return &Error{
		Reason: refusal.TokenNotBound,
		Message: fmt.Sprintf("the token is %s, and cluster %s wants one that is bound to %s (bound: %s); "+
			"use the kubelet's credential provider, a projected volume or \"kubectl create token --bound-object-kind\"",
			is, quote(i.Cluster), want, i.Bound),
	}
}

func (i *issuer) verifyNode(c *claims, _ time.Time) *Error {
	if !i.RequireNode || c.Kubernetes.hasNode() || i.inSecret(c) {
		return nil
	}
	if c.Kubernetes.Node != nil {
		return &Error{
			Reason: refusal.TokenNoNode,
			Message: fmt.Sprintf("the token's node claim has no UID, which cluster %s requires (node.claim); "+
				"the Node object did not exist when the token was issued", quote(i.Cluster)),
		}
	}
	return &Error{
		Reason: refusal.TokenNoNode,
		Message: fmt.Sprintf("the token has no node claim, which cluster %s requires (node.claim); "+
			"API servers set it since Kubernetes 1.30 (KEP-4193) in tokens of pods that are scheduled", quote(i.Cluster)),
	}
}

// notBefore is the first moment at which the token is accepted. An iat in the future is as invalid
// as an nbf in the future.
func (c *claims) notBefore() time.Time {
	return time.Unix(max(c.NotBefore, c.IssuedAt), 0).Add(-ClockSkew).UTC()
}

func unixTime(seconds int64) time.Time { return time.Unix(seconds, 0).UTC() }

// quoteList returns at most three quoted values.
func quoteList(values []string, separator string) string {
	const most = 3
	var b strings.Builder
	for n, value := range values[:min(len(values), most)] {
		if n > 0 {
			b.WriteString(separator)
		}
		b.WriteString(quote(value))
	}
	if len(values) > most {
		fmt.Fprintf(&b, "%s%d more", separator, len(values)-most)
	}
	return b.String()
}
