package oidc

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/refusal"
)

// maxPullSecretLifetime is the lifetime that a renewal requests, an hour, and ten minutes for an
// API server that grants more. Anyone who can read the Secret has the token, so Issuer.MaxLifetime
// cannot extend it.
const maxPullSecretLifetime = 70 * time.Minute

// PullSecrets are tokens in Secrets, for nodes whose configuration cannot be changed. Their
// kubelets have no credential provider and pass an image pull secret to the container runtime.
// These tokens have their own audience, so that no other token is accepted as one of them, nor one
// of them as another token. They are bound to their Secret and become invalid when it is deleted.
type PullSecrets struct {
	Audience   string   // none of Issuer.Audiences; empty: no such token is accepted
	Namespaces []string // with * for any characters; at least one
}

// isAudience is never true if no such token is accepted, because an accepted audience is never
// empty.
func (p PullSecrets) isAudience(s string) bool { return p.Audience != "" && s == p.Audience }

// Accept reports whether tokens of the namespace are accepted. validate allows only * and the
// characters of names, for which path.Match has the documented meaning.
func (p PullSecrets) Accept(namespace string) bool {
	return slices.ContainsFunc(p.Namespaces, func(glob string) bool {
		ok, _ := path.Match(glob, namespace) // false for an invalid pattern
		return ok
	})
}

func (p PullSecrets) validate(audiences []string, fault func(format string, args ...any)) {
	if p.Audience == "" {
		if len(p.Namespaces) > 0 {
			fault("pullSecrets.audience: is required")
		}
		return
	}
	if len(p.Audience) > maxAudienceBytes || !names.IsVisible(p.Audience) {
		fault("pullSecrets.audience: must be at most %d printable characters without spaces", maxAudienceBytes)
	}
	if slices.Contains(audiences, p.Audience) {
		fault("pullSecrets.audience: must be none of audiences")
	}
	if len(p.Namespaces) == 0 {
		fault("pullSecrets.namespaces: at least one is required")
	}
	for n, glob := range p.Namespaces {
		if !IsNamespaceGlob(glob) {
			fault("pullSecrets.namespaces[%d]: must be the name of a namespace, in which * is for any characters", n)
		}
	}
}

// IsNamespaceGlob reports whether s is valid in PullSecrets.Namespaces.
func IsNamespaceGlob(s string) bool {
	return names.IsLabel(strings.ReplaceAll(s, "*", "0"))
}

// inSecret reports whether a token is checked as one of PullSecrets. A token that also has other
// audiences is: this kind of token has fewer rights.
func (i *Issuer) inSecret(c *claims) bool {
	return slices.ContainsFunc(c.Audience, i.PullSecrets.isAudience)
}

// verifyPullSecret is verifyBinding for such tokens. A token from a Secret needs no pod, and a token of
// a pod must not be in a Secret.
func (i *issuer) verifyPullSecret(k *kubernetesClaims) *Error {
	if k.Secret == nil || k.Pod != nil || k.Node != nil {
		return &Error{
			Reason: refusal.TokenNotBound,
			Message: fmt.Sprintf("the token has the audience %s of pull secrets and is not bound to a Secret alone, as cluster %s wants it (pullSecrets); "+
				"\"pullpass pull-secrets controller\" makes such tokens", quote(i.PullSecrets.Audience), quote(i.Cluster)),
		}
	}
	if !i.PullSecrets.Accept(k.Namespace) {
		return &Error{
			Reason: refusal.TokenPullSecret,
			Message: fmt.Sprintf("cluster %s accepts no tokens of pull secrets from namespace %s (pullSecrets.namespaces); "+
				"pull with the kubelet's credential provider, or ask for the namespace to be added", quote(i.Cluster), quote(k.Namespace)),
		}
	}
	return nil
}
