// Package exchange authenticates and authorizes token requests. It turns a registryauth.Request
// into a registryauth.Token.
//
//	Handler          HTTP in, HTTP out; parse, limit, queue, authorize, issue, classify, record
//	Authorizer       Authorize: identify → Admission.Admit → replay, limit → decide; serving and explaining share it
//	Exchanger        Verifier and Policy as an Authorizer needs them; Issue
//	Admission.Admit  are the named objects still there, may the node pull, is the caller that node, is it revoked
//	Event            one per request, whatever happens
//	Memory           state that requests share, from one Exchanger and Handler to the next
//
// The claims of a token hold while the token lives. All else may change, so every request is judged
// anew, before an issued token is looked up for reuse.
//
// The package owns the checks of nodes, the limits and the audit event. It does not own access
// rules (package policy), the proof that a caller is a node (package nodeproof), keys, the wire
// protocol, or the source of Kubernetes objects. Those come in through registryauth and the small
// interfaces declared here.
package exchange
