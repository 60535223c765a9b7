package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/oidc"
)

// admit says what a serving proxy says before it asks the policy: whether the
// objects are there, whether the node may pull, and whether the caller is the
// node. A refusal is an answer, not an error.
func (e explanation) admit(ctx context.Context, cfg *Config, objects *objects, id oidc.Identity, o explainOptions) (subject exchange.Subject, refused bool, err error) {
	all, err := nodeChecks(cfg, nil)
	if err != nil {
		return exchange.Subject{}, false, err
	}
	checks, caller := all[id.Cluster], exchange.Caller{}
	configured := checks.Proof
	checks.Proof = exchange.ProofConfig{}
	if len(configured.Methods) > 0 {
		// Whether it refuses is for us to say: a certificate might suffice.
		checks.Proof = exchange.ProofConfig{Mode: exchange.ProofAudit, Methods: []exchange.ProofMethod{exchange.ProofAddress}}
	}
	if o.caller != "" {
		if caller.Address, err = netip.ParseAddr(o.caller); err != nil {
			return exchange.Subject{}, false, fmt.Errorf("--caller %q is not an IP address", o.caller)
		}
		caller.Address = caller.Address.Unmap().WithZone("") // as callerAddress has it
		caller.ViaProxy = slices.ContainsFunc(cfg.Server.TrustedProxies, func(p netip.Prefix) bool { return p.Contains(caller.Address) })
	}
	if o.as != "" {
		checks = exchange.NodeChecks{}
	}
	revocations, closeList := e.revocations(ctx, cfg)
	defer closeList()
	admission, err := exchange.NewAdmission(exchange.AdmissionConfig{
		Objects: objects, Nodes: map[string]exchange.NodeChecks{id.Cluster: checks}, Revocations: revocations,
	})
	if err != nil {
		return exchange.Subject{}, false, err
	}
	event := &exchange.Event{}
	subject, err = admission.Admit(ctx, id, caller, event)
	e.identity(id, event)
	switch reason := refusal(err); {
	case reason != "":
		e.line("REFUSED", err.Error())
		e.line("reason", reason)
		if r := event.Revocation; r != nil {
			e.line("revoked", fmt.Sprintf("%s until %s, by %q", r.Target, r.Until.UTC().Format(time.RFC3339), r.By))
		}
		return exchange.Subject{}, true, nil
	case err != nil:
		return exchange.Subject{}, false, err
	}
	if checks.Selector != nil {
		e.line("selector", "the node matches "+checks.Selector.String())
	}
	return subject, e.proof(event.Proof, configured, o), nil
}

// revocations reads who is revoked, or says why that is not judged.
func (e explanation) revocations(ctx context.Context, cfg *Config) (judged exchange.Revocations, closeList func()) {
	list, closeList, err := openRevocations(cfg)
	if errors.Is(err, errNoRedis) {
		return nil, func() {}
	}
	if err == nil {
		if _, err = list.List(ctx); err == nil {
			return revocations{list}, closeList
		}
		closeList()
	}
	e.line("revocations", "are not judged: "+err.Error())
	return nil, func() {}
}

// refusal returns the reason if err refuses an identity, and nothing if it only
// says that something could not be known.
func refusal(err error) string {
	var (
		gone    *exchange.GoneError
		node    *exchange.NodeError
		revoked *exchange.RevokedError
		token   *oidc.Error
	)
	switch {
	case errors.As(err, &gone):
		return gone.Reason()
	case errors.As(err, &node):
		return node.Reason()
	case errors.As(err, &revoked):
		return "revoked"
	case errors.As(err, &token):
		return string(token.Reason)
	}
	return ""
}

// proof says whether the caller is the node, as far as an address can tell.
func (e explanation) proof(proof *exchange.Proof, configured exchange.ProofConfig, o explainOptions) (refused bool) {
	switch {
	case len(configured.Methods) == 0:
		if o.caller != "" {
			e.line("caller", o.caller+" is not judged: node.proof is off in this cluster")
		}
		return false
	case o.as != "":
		e.line("caller", "is not judged: only a token names a node")
		return false
	case proof.Reason == exchange.ProofNoNode: // nobody can be it
	case o.caller == "" || !slices.Contains(configured.Methods, exchange.ProofAddress):
		how := "--caller ADDRESS does"
		if !slices.Contains(configured.Methods, exchange.ProofAddress) {
			how = "only a certificate proves one in this cluster"
		}
		e.line("caller", fmt.Sprintf("is not judged (node.proof.mode is %s); %s", configured.Mode, how))
		return false
	case proof.Passed:
		e.line("caller", o.caller+" is an address of the node")
		return false
	}
	e.line("caller", proof.Message)
	switch {
	case configured.Mode == exchange.ProofAudit:
		e.line("", "node.proof.mode is audit: it is written down, and nobody is refused")
		return false
	case proof.Reason != exchange.ProofNoNode && slices.Contains(configured.Methods, exchange.ProofCertificate):
		e.line("", "REFUSED (403) unless its client certificate proves it")
		return false
	}
	e.line("REFUSED", "node.proof.mode is enforce (403)")
	return true
}
