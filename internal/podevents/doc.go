// Package podevents tells pods of refusals: it writes them as events on the pods whose
// tokens were refused, because container runtimes show their users no more than the
// status. It does not own why something was refused (packages exchange and policy).
package podevents
