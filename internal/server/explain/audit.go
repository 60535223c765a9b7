package explain

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/refusal"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/server/audit"
)

// fromAudit rebuilds the request of a line of the audit log.
func (e *explainer) fromAudit(ctx context.Context, r Request, stdin io.Reader, stderr io.Writer) error {
	files := r.AuditFiles
	if len(files) == 0 {
		if e.cfg.Audit.File == "" {
			return errors.New("audit.file is not set, so serve writes the audit log to standard output; name the file that keeps it with --audit-file; - is standard input")
		}
		files = []string{e.cfg.Audit.File}
	}
	var err error
	if e.line, e.then, err = audit.Find(ctx, files, r.FromAudit, stdin, stderr); err != nil {
		return err
	}
	if err := e.repeat(); err != nil {
		return fmt.Errorf("audit line %s: %w", term.Words(r.FromAudit), err)
	}
	return nil
}

// repeat rebuilds the request from the event. Anyone may have changed the file, so the
// names are validated before an API server gets them.
func (e *explainer) repeat() error {
	then := e.then
	if then.GrantType == "" && (then.Gateway == nil || then.Gateway.TokenID == "") {
		return fmt.Errorf("it was not a token request, so it cannot be explained (%s)", term.Words(then.Reason))
	}
	if then.Service == "" {
		return fmt.Errorf("the line names no service of registries[] (%s): %s", term.Words(then.Reason), term.Line(then.Message))
	}
	var err error
	e.service = then.Service
	e.scopes, e.malformed, e.omitted = registryauth.ReadScopes(then.Requested)
	e.omitted += then.Omitted
	if e.malformed != nil && then.Result == exchange.ResultGranted {
		return e.malformed[0].Fault // an invalid scope is never granted: the line was changed
	}
	if then.Caller != "" {
		address, err := netip.ParseAddr(then.Caller)
		if err != nil {
			return fmt.Errorf("caller %q is not an IP address", then.Caller)
		}
		e.from(address)
	}
	switch {
	case then.Claimed != nil:
		e.source = sourceClaim
		return e.claimed()
	case then.ServiceAccount != nil:
		e.source = sourceAudit
		e.id, err = provenThen(then)
		return err
	case then.Identity != nil && then.Gateway != nil:
		return errors.New("the line has no claims; explain the line of the token request, whose issuedID is gateway.tokenID")
	case then.Identity != nil && then.Identity.Subject != "":
		e.source = sourceAudit
		return nil
	case then.GrantType == string(registryauth.GrantAnonymous), then.Gateway != nil:
		e.source = sourceAnonymous
		return nil
	}
	return fmt.Errorf("the line names no identity for --as (%s: %s)", term.Words(then.Reason), term.Line(then.Message))
}

// provenThen returns the identity that the token of an event proved.
func provenThen(then *exchange.Event) (*oidc.Identity, error) {
	id := &oidc.Identity{
		Cluster: then.Cluster,
		Subject: oidc.ServiceAccountSubject(then.Namespace, then.ServiceAccount.Name),
		TokenID: strings.TrimPrefix(then.CredentialID, "JTI="),
		Kubernetes: oidc.KubernetesIdentity{Namespace: then.Namespace,
			ServiceAccount: oidc.ObjectRef(*then.ServiceAccount)},
	}
	said := []string{id.Kubernetes.ServiceAccount.Name}
	if then.Pod != nil {
		id.Kubernetes.Pod = oidc.ObjectRef(*then.Pod)
		said = append(said, id.Kubernetes.Pod.Name)
	}
	if then.Node != nil && !then.NodeFromAPI { // else the API server names it again
		id.Kubernetes.Node = oidc.ObjectRef(*then.Node)
		said = append(said, id.Kubernetes.Node.Name)
	}
	if then.PullSecret != nil {
		id.Kubernetes.Secret = oidc.ObjectRef(*then.PullSecret)
		said = append(said, id.Kubernetes.Secret.Name)
	}
	const changed = "%q is not a valid name of a Kubernetes object; was the line changed?"
	if !names.IsLabel(id.Kubernetes.Namespace) {
		return nil, fmt.Errorf(changed, id.Kubernetes.Namespace)
	}
	if i := slices.IndexFunc(said, func(name string) bool { return !names.IsSubdomain(name) }); i >= 0 {
		return nil, fmt.Errorf(changed, said[i])
	}
	return id, nil
}

// claimed finds the ServiceAccount that a refused token claimed. The issuer selects
// the cluster, as when a token is verified.
func (e *explainer) claimed() error {
	c := e.then.Claimed
	cluster := e.claimedCluster()
	switch {
	case slices.ContainsFunc(e.cfg.Identities, func(i config.Provider) bool { return i.Issuer == c.Issuer }):
		return fmt.Errorf("the refused token claimed an identity of identities[], but the line has none of its claims, so the request cannot be explained (%s: %s)", term.Words(e.then.Reason), term.Line(e.then.Message))
	case cluster == nil || e.isLegacy():
		return nil // the answer says so
	}
	account, ok := audit.ClaimedServiceAccount(e.then)
	if account.Cluster = cluster.Name; !ok || account.Check() != nil {
		return fmt.Errorf("the refused token claimed to be %q, which is not a ServiceAccount, so the request cannot be explained (%s: %s)", c.Subject, term.Words(e.then.Reason), term.Line(e.then.Message))
	}
	e.id = identityNamed(cluster, account)
	return nil
}

func (e *explainer) claimedCluster() *config.Cluster {
	i := slices.IndexFunc(e.cfg.Clusters, func(c config.Cluster) bool { return c.Issuer == e.then.Claimed.Issuer })
	if i < 0 {
		return nil
	}
	return &e.cfg.Clusters[i]
}

func (e *explainer) isLegacy() bool { return e.then.Reason == string(refusal.TokenLegacy) }

const tokenIsGone = "the log does not contain the token"

// auditToken decides whether the current configuration would still accept the token
// of the line. The token itself is not available.
func (e *explainer) auditToken() error {
	then := e.then
	when := then.Time.UTC().Format(time.RFC3339)
	if e.source == sourceClaim {
		switch {
		case e.isLegacy():
			return &oidc.Error{Reason: refusal.TokenLegacy, Message: "a secret-based token is never accepted; use one of the kubelet, or of kubectl create token --bound-object-kind Pod"}
		case e.claimedCluster() == nil:
			return &oidc.Error{Reason: refusal.TokenUnknownIssuer, Message: fmt.Sprintf("its issuer, as it claims, is %q, which is not in clusters[].issuer, nor in identities[].issuer", then.Claimed.Issuer)}
		}
		e.tokenWords = fmt.Sprintf("it was refused at %s (%s), and %s; the rest assumes a valid token of the ServiceAccount, even if the sender had none",
			when, term.Words(then.Reason), tokenIsGone)
		return nil
	}
	cluster := e.cfg.Cluster(e.id.Cluster)
	if cluster == nil {
		return &oidc.Error{Reason: refusal.TokenUnknownIssuer, Message: fmt.Sprintf("cluster %q is not in clusters[] any more", e.id.Cluster)}
	}
	if e.id.InSecret() {
		return e.pullSecretThen(cluster, when)
	}
	isBound := e.id.Kubernetes.Pod.UID != "" || cluster.Bound == oidc.BoundAny || cluster.Bound == oidc.BoundPodOrNode && e.id.Kubernetes.Node.UID != ""
	if !isBound {
		return &oidc.Error{Reason: refusal.TokenNotBound, Message: fmt.Sprintf("it was not bound as cluster %q now requires (bound: %s)", cluster.Name, cluster.Bound)}
	}
	e.id.Issuer = cluster.Issuer
	e.tokenWords = fmt.Sprintf("it was good at %s, and %s; the rest assumes a valid token of the same pod", when, tokenIsGone)
	return nil
}

// pullSecretThen decides whether such a token in a Secret would still be accepted.
func (e *explainer) pullSecretThen(cluster *config.Cluster, when string) error {
	if cluster.PullSecrets == nil {
		return &oidc.Error{Reason: refusal.TokenAudience, Message: fmt.Sprintf("cluster %q no longer accepts tokens of pull secrets (pullSecrets)", cluster.Name)}
	}
	if !(oidc.PullSecrets{Namespaces: cluster.PullSecrets.Namespaces}).Accept(e.id.Kubernetes.Namespace) {
		return &oidc.Error{Reason: refusal.TokenPullSecret, Message: fmt.Sprintf("cluster %q accepts no tokens of pull secrets from namespace %q in this configuration (pullSecrets.namespaces)", cluster.Name, e.id.Kubernetes.Namespace)}
	}
	e.id.Issuer = cluster.Issuer
	e.tokenWords = fmt.Sprintf("it was good at %s, and %s; the rest assumes a valid token in the same Secret", when, tokenIsGone)
	return nil
}
