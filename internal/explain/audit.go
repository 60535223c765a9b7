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

	"github.com/pullpass/pullpass/internal/audit"
	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/names"
	"github.com/pullpass/pullpass/internal/oidc"
	"github.com/pullpass/pullpass/internal/registryauth"
	"github.com/pullpass/pullpass/internal/term"
)

// fromAudit makes the request of a line of the audit log anew.
func (e *explainer) fromAudit(ctx context.Context, r Request, stdin io.Reader, stderr io.Writer) error {
	files := r.AuditFiles
	if len(files) == 0 {
		if e.cfg.Audit.File == "" {
			return errors.New("audit.file is not set, so the audit log is on standard output: say with --audit-file where it was kept; - is standard input")
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

// repeat reads the request out of the event. Files are what people have: what is
// in them is checked before an API server is asked about it.
func (e *explainer) repeat() error {
	then := e.then
	if then.GrantType == "" && (then.Gateway == nil || then.Gateway.TokenID == "") {
		return fmt.Errorf("it was no token request that could be judged again (%s)", term.Words(then.Reason))
	}
	if then.Service == "" {
		return fmt.Errorf("it was for no registry that is served here (%s): %s", term.Words(then.Reason), term.Line(then.Message))
	}
	var err error
	e.service = then.Service
	e.scopes, e.malformed, e.omitted = registryauth.ReadScopes(then.Requested)
	e.omitted += then.Omitted
	if e.malformed != nil && then.Result == exchange.ResultGranted {
		return e.malformed[0].Fault // what is no scope is never granted: the line was changed
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
		return errors.New("the line has no claims to judge by: judge that of the token request, whose issuedID is gateway.tokenID")
	case then.Identity != nil && then.Identity.Subject != "":
		e.source = sourceAudit
		return nil
	case then.GrantType == string(registryauth.GrantAnonymous), then.Gateway != nil:
		e.source = sourceAnonymous
		return nil
	}
	return fmt.Errorf("the token told nothing of itself, so nobody is named whom --as could stand for (%s: %s)", term.Words(then.Reason), term.Line(then.Message))
}

// provenThen is the identity that the token of an event proved.
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
	if then.Node != nil && !then.NodeFromAPI { // else it is for the API server to name it again
		id.Kubernetes.Node = oidc.ObjectRef(*then.Node)
		said = append(said, id.Kubernetes.Node.Name)
	}
	if then.PullSecret != nil {
		id.Kubernetes.Secret = oidc.ObjectRef(*then.PullSecret)
		said = append(said, id.Kubernetes.Secret.Name)
	}
	const changed = "%q is the name of no Kubernetes object; was the line changed?"
	if !names.IsLabel(id.Kubernetes.Namespace) {
		return nil, fmt.Errorf(changed, id.Kubernetes.Namespace)
	}
	if i := slices.IndexFunc(said, func(name string) bool { return !names.IsSubdomain(name) }); i >= 0 {
		return nil, fmt.Errorf(changed, said[i])
	}
	return id, nil
}

// claimed finds the ServiceAccount that a refused token said to be of. The
// issuer tells the cluster, as it does when a token is verified.
func (e *explainer) claimed() error {
	c := e.then.Claimed
	cluster := e.claimedCluster()
	switch {
	case slices.ContainsFunc(e.cfg.Identities, func(i config.Provider) bool { return i.Issuer == c.Issuer }):
		return fmt.Errorf("the refused token claimed to be of an identity, and the line has none of its claims, so nobody can be judged (%s: %s)", term.Words(e.then.Reason), term.Line(e.then.Message))
	case cluster == nil || e.isLegacy():
		return nil // which is the answer
	}
	account, ok := audit.ClaimedServiceAccount(e.then)
	if account.Cluster = cluster.Name; !ok || account.Check() != nil {
		return fmt.Errorf("the refused token claimed to be %q, which is no ServiceAccount, so nobody can be judged (%s: %s)", c.Subject, term.Words(e.then.Reason), term.Line(e.then.Message))
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

func (e *explainer) isLegacy() bool { return e.then.Reason == string(oidc.ReasonLegacy) }

const tokenIsGone = "the log holds no token that could be verified again"

// auditToken judges what can be judged of a token that is not there: whether
// the configuration of now still accepts such a one.
func (e *explainer) auditToken() error {
	then := e.then
	when := then.Time.UTC().Format(time.RFC3339)
	if e.source == sourceClaim {
		switch {
		case e.isLegacy():
			return &oidc.Error{Reason: oidc.ReasonLegacy, Message: "a secret-based token is never accepted; use one of the kubelet, or of kubectl create token --bound-object-kind Pod"}
		case e.claimedCluster() == nil:
			return &oidc.Error{Reason: oidc.ReasonUnknownIssuer, Message: fmt.Sprintf("its issuer, as it claims, is %q, which is not in clusters[].issuer, nor in identities[].issuer", then.Claimed.Issuer)}
		}
		e.step(stepToken, exchange.VerdictNotJudged, "it was refused at %s (%s), and %s; what follows is what a good token of the ServiceAccount would get, whoever the sender was",
			when, term.Words(then.Reason), tokenIsGone)
		return nil
	}
	cluster := e.cluster(e.id.Cluster)
	if cluster == nil {
		return &oidc.Error{Reason: oidc.ReasonUnknownIssuer, Message: fmt.Sprintf("cluster %q is not in clusters[] any more", e.id.Cluster)}
	}
	if e.id.InSecret() {
		return e.pullSecretThen(cluster, when)
	}
	isBound := e.id.Kubernetes.Pod.UID != "" || cluster.Bound == oidc.BoundAny || cluster.Bound == oidc.BoundPodOrNode && e.id.Kubernetes.Node.UID != ""
	if !isBound {
		return &oidc.Error{Reason: oidc.ReasonNotBound, Message: fmt.Sprintf("it was not bound as cluster %q wants it now (bound: %s)", cluster.Name, cluster.Bound)}
	}
	e.id.Issuer = cluster.Issuer
	e.step(stepToken, exchange.VerdictNotJudged, "it was good at %s, and %s; what follows is for one of the same pod that is good now", when, tokenIsGone)
	return nil
}

// pullSecretThen judges whether such a token in a Secret would still be accepted.
func (e *explainer) pullSecretThen(cluster *config.Cluster, when string) error {
	if cluster.PullSecrets == nil {
		return &oidc.Error{Reason: oidc.ReasonAudience, Message: fmt.Sprintf("cluster %q accepts no tokens of pull secrets any more (pullSecrets)", cluster.Name)}
	}
	if !(oidc.PullSecrets{Namespaces: cluster.PullSecrets.Namespaces}).Accept(e.id.Kubernetes.Namespace) {
		return &oidc.Error{Reason: oidc.ReasonPullSecret, Message: fmt.Sprintf("cluster %q accepts no tokens of pull secrets from namespace %q any more (pullSecrets.namespaces)", cluster.Name, e.id.Kubernetes.Namespace)}
	}
	e.id.Issuer = cluster.Issuer
	e.step(stepToken, exchange.VerdictNotJudged, "it was good at %s, and %s; what follows is for one in the same Secret that is good now", when, tokenIsGone)
	return nil
}
