// Package exchange leads a request through all that is asked of it, and turns a
// registryauth.Request into a registryauth.Token.
//
//	Handler          HTTP in, HTTP out; parse, limit, queue, authorize, issue, classify, record
//	Exchanger        Authorize: verify → Admission.Admit → replay, limit → Policy.Decide; then Issue
//	Admission.Admit  are the named objects still there, may the node pull, is the caller that node, is it revoked
//	Event            one per request, whatever happens
//	Memory           what requests share, from one Exchanger and Handler to the next
//
// What a token says is true while the token lives; all else may change, so it
// is judged afresh for every request, before an issued token is looked up that
// might be given again.
//
// It owns which nodes may pull, limits, and the audit event. It does not own who
// may have what (package policy), whether a caller is a node (package nodeproof),
// keys, the wire protocol, or where Kubernetes objects are read from: those come
// in through registryauth and the small interfaces declared here.
package exchange
