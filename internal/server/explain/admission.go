package explain

import (
	"context"

	"github.com/pullpass/pullpass/internal/config"
	"github.com/pullpass/pullpass/internal/config/setup"
	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
)

// hasToken reports whether a token, presented now or in the audit log, names pod and node.
func (e *explainer) hasToken() bool { return e.source == sourceToken || e.source == sourceAudit }

// nodeChecks returns the configured checks that can be made with the source of the request.
func (e *explainer) nodeChecks(configured map[string]exchange.NodeChecks) map[string]exchange.NodeChecks {
	checks := map[string]exchange.NodeChecks{}
	for name, c := range configured {
		switch e.source {
		case sourceName, sourceClaim:
			continue // only a token names a node
		case sourceAudit:
			// The verifier required the claim then; now there is no token to verify.
			c.Required = e.cfg.Cluster(name).Node.Claim == config.NodeClaimRequired
		}
		checks[name] = c
	}
	return checks
}

// Lookup lists the objects of the policy first. Without a token, it cannot have the token's Secret
// reviewed.
func (e *explainer) Lookup(ctx context.Context, id oidc.Identity, credential oidc.Credential) (exchange.Facts, error) {
	if e.cfg.Cluster(id.Cluster).Kubernetes.Objects.Count() {
		e.objectsFault = e.objects.ListPolicyObjects(ctx, id.Cluster)
	}
	if e.source != sourceToken {
		id.Kubernetes.Secret, credential = oidc.ObjectRef{}, nil
	}
	return e.objects.Lookup(ctx, id, credential)
}

// revocations reads the list of revocations. Without a list the step is not judged,
// and the fault says why: it is ErrNoRedis without state.redis.
func (e *explainer) revocations(ctx context.Context) (judged exchange.Revocations, closeList func(), fault error) {
	list, closeList, err := setup.OpenRevocations(e.cfg)
	if err != nil {
		return nil, func() {}, err
	}
	if _, err := list.List(ctx); err != nil {
		closeList()
		return nil, func() {}, err
	}
	return setup.Revocations{List: list}, closeList, nil
}
