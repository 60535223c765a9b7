// Package tokensecrets maintains image pull secrets whose passwords are short-lived tokens of
// ServiceAccounts. They are for nodes whose kubelets cannot have a credential provider.
//
// A ServiceAccount gets a Secret if it and its namespace have opted in by the label Label. The
// controller creates an empty Secret first. Then it requests a token that is bound to the Secret
// (TokenRequest with boundObjectRef), and puts the token into it. It changes nothing else: no
// ServiceAccount, and no Secret of others.
//
//	Controller   which ServiceAccounts have opted in, what is due, one leader (controller.Leader)
//	secrets      the Secret of one ServiceAccount, and the actions on it
//	memory       when tokens were issued, for the next leader
//	keyWatch     the keys with which the cluster signs now
//
// The controller cannot read Secrets. It has no right to get, list, watch or patch them, because
// errors of patches disclose stored data. It asks about its own Secrets with a dry-run update,
// whose response repeats the request. An admission policy limits its updates to its own Secrets
// (deploy/kubernetes/pull-secrets-controller.yaml). Without that policy, the controller does
// nothing.
//
// Package pullsecrets is separate: it reads the pull secrets that people created, so that they can
// be removed.
package tokensecrets
