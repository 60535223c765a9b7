// Package state holds what several replicas must know together.
//
//	Own       the first caller of a token id; another one is a replay
//	Take      rate limits (GCRA), by keys that the caller composes
//	Revoked   what an operator has revoked: token ids, pods, ServiceAccounts, nodes
//
// Memory and MemoryRevocations serve one replica, Redis and RedisRevocations
// several. Package statetest holds both to the same behaviour.
//
// It owns how keys are stored, that every call ends in time, and that nothing
// grows without bound. It does not own what happens without an answer: a call
// that cannot be answered returns an error, and the caller decides. It never
// sees a token, and Redis is never given one.
package state
