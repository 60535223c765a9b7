// Package chaostest runs three replicas of the real Pullpass under load, with a real Redis in a network of its own, while faults
// that a seed chooses come alone and together. An oracle says of each answer whether it may be given. "make chaos" runs it for as
// long as you like, and for a minute with "go test".
//
//	world   the parts: replicas, Redis, issuer, name server, and the facts about each
//	faults  what the seed chooses from
//	load    requests that are valid, forged, revoked, not allowed, stolen or anonymous, by GET and by POST
//	oracle  the answers that may be given and those that must, from the documented delays
//
// The oracle knows all faults. A grant must be right by what the replica may know, and its token must be verified by the published
// keys. A refusal must be right, too. An answer may be missing only while something that the request needs is down.
//
// The clock of a replica jumps because its package time is changed (programs.PullpassWithClock): only the wall clock moves, as
// when an administrator sets it. The other release is the tree's own without that change, or the program of -chaos-other.
//
// A run that fails prints the seed, the events before, and the request.
package chaostest
