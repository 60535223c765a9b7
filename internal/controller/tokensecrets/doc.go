// Package tokensecrets keeps image pull secrets whose passwords are short-lived tokens
// of ServiceAccounts, for nodes whose kubelets cannot be given a credential provider.
//
// A ServiceAccount has one if it and its namespace have opted in by the label Label. The
// Secret comes first and is empty, then a token that is bound to it (TokenRequest with
// boundObjectRef), then the token is put into it. Nothing else is changed: no
// ServiceAccount, and no Secret that is not this one's own.
//
//	Controller   who has opted in, what is due, one leader (controller.Leader)
//	secrets      one ServiceAccount: what its Secret is, and what is done about it
//	keyWatch     with which keys the cluster signs now
//
// It cannot read Secrets: it has no right to get, list or watch any. What it has to know
// of its own is in their annotations, and comes back with a patch that changes nothing
// and is not carried out. An admission policy bounds such patches to these Secrets
// (deploy/kubernetes/pull-secrets-controller.yaml).
//
// Package pullsecrets, which is another one, reads those that people made, to get rid
// of them.
package tokensecrets
