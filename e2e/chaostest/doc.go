// Package chaostest runs three replicas of the real Pullpass under load, with a real Redis in a network of its own, while faults
// that a seed chooses come alone and together, in storms with lulls in between. An oracle says of each answer whether it may be
// given. "make chaos" runs it for as long as you like, and "go test" for a storm and a lull.
//
//	world   the parts: replicas, Redis, issuer, name server, API server, and the facts about each
//	faults  a deck of all kinds: each comes before any comes again. A long run fails if one of them did not come
//	load    requests that are valid, forged, expired, revoked, not allowed, stolen or anonymous, by GET and by POST
//	oracle  the answers that may be given and those that must, from the documented delays and from earlier answers
//
// A second cluster has a real API server (apiServer), whose pods and RepositoryAccess objects come and go. Callers
// of the first cluster must not notice its faults.
//
// One of the replicas only notes replays. It grants while Redis is away, so a revocation that it forgot is seen.
//
// The oracle knows all faults. A grant must be right by what the replica may know, and its token must be verified by the published
// keys. A refusal must be right, too. An answer may be missing only while something that the request needs is down.
//
// The clock of a replica jumps because its package time is changed (programs.PullpassWithClock): only the wall clock moves, as
// when an administrator sets it. The other release is the tree's own without that change, or the program of -chaos-other.
//
// A run that fails prints the seed, the events before, and the request.
package chaostest
