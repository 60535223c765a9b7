// Package exchange decides: who asks, for what, and what the administrator's
// policy gives. It turns a registryauth.Request into a registryauth.Token.
//
//	Handler          HTTP in, HTTP out; the only place that maps errors to a status
//	Exchanger        verify → annotations → Policy.Decide → issue
//	Policy.Decide    pure: no clock, no I/O; the same code serves, explains and checks
//	Event            one per request, whatever happens
//
// It owns the policy language and the audit event. It does not own keys, the
// wire protocol, or where ServiceAccounts are read from: those come in through
// registryauth and the small interfaces declared here.
package exchange
