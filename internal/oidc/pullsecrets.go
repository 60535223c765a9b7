package oidc

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/names"
)

// maxPullSecretLifetime is what whoever renews such tokens asks for, an hour, and ten
// minutes for an API server that gives more. Whoever reads the Secret has the token,
// from anywhere, so Issuer.MaxLifetime cannot make it longer.
const maxPullSecretLifetime = 70 * time.Minute

// PullSecrets are tokens that lie in Secrets, for nodes that nobody may change: their
// kubelets have no credential provider, and hand an image pull secret to the runtime.
// They have an audience of their own, so that no other token passes for one and none
// of them for another, and are bound to their Secret, so that they end with it.
type PullSecrets struct {
	Audience   string   // none of Issuer.Audiences; empty: no such token is accepted
	Namespaces []string // with * for any characters; at least one
}

// isAudience is never true where no such token is accepted: no audience is empty.
func (p PullSecrets) isAudience(s string) bool { return p.Audience != "" && s == p.Audience }

// Accept reports whether tokens of the namespace are accepted. With nothing but * and
// the letters of names, which validate sees to, path.Match has no other meaning than ours.
func (p PullSecrets) Accept(namespace string) bool {
	return slices.ContainsFunc(p.Namespaces, func(glob string) bool {
		ok, err := path.Match(glob, namespace)
		return ok && err == nil
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

// IsNamespaceGlob reports whether s is what PullSecrets.Namespaces can hold.
func IsNamespaceGlob(s string) bool {
	return names.IsLabel(strings.ReplaceAll(s, "*", "0"))
}

// inSecret reports whether a token is judged as one of PullSecrets. One that has other
// audiences besides is: it may do less.
func (i *Issuer) inSecret(c *claims) bool {
	return slices.ContainsFunc(c.Audience, i.PullSecrets.isAudience)
}

// checkPullSecret is checkBound for them: a pod is not asked of a token that is read
// from a Secret, and one of a pod does not belong there.
func (i *issuer) checkPullSecret(k *kubernetesClaims) *Error {
	if k.Secret == nil || k.Pod != nil || k.Node != nil {
		return &Error{
			Reason: ReasonNotBound,
			Message: fmt.Sprintf("the token has the audience %s of pull secrets and is not bound to a Secret alone, as cluster %s wants it (pullSecrets); "+
				"\"pullpass pull-secrets controller\" makes such tokens", quote(i.PullSecrets.Audience), quote(i.Cluster)),
		}
	}
	if !i.PullSecrets.Accept(k.Namespace) {
		return &Error{
			Reason: ReasonPullSecret,
			Message: fmt.Sprintf("cluster %s accepts no tokens of pull secrets from namespace %s (pullSecrets.namespaces); "+
				"pull with the kubelet's credential provider, or ask for the namespace to be added", quote(i.Cluster), quote(k.Namespace)),
		}
	}
	return nil
}
