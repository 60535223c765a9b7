// Package statetest holds every implementation of the shared state to the same
// behaviour, and starts the real Redis servers to do it with.
//
//	Run              the suite
//	Redis            one server, which tests may kill, stop and start again
//	StartSentinels   a master, a replica, and the Sentinels that watch them
//	StartCluster     three nodes
//
// It does not own what only one implementation has: exact times with a clock
// that tests move, and failures of Redis, are tested in package state.
package statetest
