// Package statetest runs the same tests for every implementation of the shared state, and starts
// real Redis servers for them.
//
//	Run              the suite
//	Redis            one server, which tests may kill, stop and start again
//	StartSentinels   a master, a replica, and the Sentinels that watch them
//	StartCluster     three nodes
//
// It does not own tests that apply to only one implementation. Exact times with a test clock, and
// failures of Redis, are tested in package state.
package statetest
