package config

import (
	"fmt"
	"slices"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
	"github.com/pullpass/pullpass/internal/oidc"
)

// PullSecrets says which tokens in Secrets are accepted, for nodes whose kubelets
// cannot be given a credential provider. They only pull, and prove no node.
type PullSecrets struct {
	Audience   string   `json:"audience" schema:"required nonempty"`   // of these tokens alone: none of audiences
	Namespaces []string `json:"namespaces" schema:"required nonempty"` // from which they are accepted; * is for any characters
}

func (v *validator) pullSecrets(path string, c *Cluster) {
	p := c.PullSecrets
	if p == nil {
		return
	}
	own := path + ".pullSecrets.audience"
	v.audience(own, p.Audience)
	switch p.Audience {
	case "":
	case c.Issuer: // API servers accept it as their own, unless --api-audiences says otherwise
		v.Fault(own, "is the cluster's issuer (%s): such a token would be good for the API server, too; use an audience of its own", term.QuoteValue(p.Audience))
	default:
		if slices.Contains(c.Audiences, p.Audience) {
			v.Fault(own, "is one of audiences (%s): a token in a Secret would pass for one of a pod; use an audience of its own", term.QuoteValue(p.Audience))
		}
	}
	if len(p.Namespaces) == 0 {
		v.Fault(path+".pullSecrets.namespaces", "is empty; name those from which tokens in Secrets are accepted, or remove pullSecrets")
	}
	for i, glob := range p.Namespaces {
		if !oidc.IsNamespaceGlob(glob) {
			v.Fault(fmt.Sprintf("%s.pullSecrets.namespaces[%d]", path, i), "is not the name of a namespace (%s); use a-z, 0-9 and '-', and * for any characters", term.QuoteValue(glob))
		}
	}
	if !c.Kubernetes.Connected() {
		v.Fault(path+".pullSecrets", needsConnection, "a signature does not say that the Secret was deleted", "remove it")
	}
}

// pullSecretWarnings name the checks that tokens without a node do not get, and tokens in Secrets
// that are not limited as those of pull secrets are.
func (c *Config) pullSecretWarnings(warn func(path, text string)) {
	for i := range c.Clusters {
		cluster := &c.Clusters[i]
		if cluster.PullSecrets == nil {
			continue
		}
		node := &cluster.Node
		if cluster.Bound == oidc.BoundAny && node.Claim == NodeClaimOptional && node.Selector == "" && node.Proof.Mode != nodeproof.Enforce {
			warn(fmt.Sprintf("clusters[%d].bound", i), fmt.Sprintf("takes a token that is bound to a Secret for an ordinary one if it has one of audiences (%s): it can push, and outlives its Secret; "+
				"write %s or %s, or end such tokens by \"pullpass revoke\"", cluster.Bound, oidc.BoundPod, oidc.BoundPodOrNode))
		}
		var unasked []string
		if node.Selector != "" {
			unasked = append(unasked, "node.selector")
		}
		if node.Proof.Mode != nodeproof.Off {
			unasked = append(unasked, "node.proof")
		}
		if len(unasked) > 0 {
			warn(fmt.Sprintf("clusters[%d].pullSecrets", i), fmt.Sprintf("lets who reads a Secret in these namespaces pull from anywhere (%q): its token names no node, so %q say nothing of it",
				cluster.PullSecrets.Namespaces, unasked))
		}
	}
}
