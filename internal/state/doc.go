// Package state holds the state that several replicas share.
//
//	Own       the first caller of a token id; a different caller is a replay
//	Take      rate limits (GCRA), by keys that the caller composes
//	Revoked   revocations by operators: token ids, pods, ServiceAccounts, nodes
//
// Memory and MemoryRevocations serve one replica, Redis and RedisRevocations
// several. Package statetest holds both to the same behaviour.
//
// It owns how keys are stored, that every call has a time limit, and that nothing grows without
// bound. It does not own the behaviour without an answer: a call that cannot be answered returns an
// error, and the caller decides. It never receives a token, and never gives one to Redis.
package state
