// Package simulation runs many replicas, clusters, issuers, a Redis, an upstream and clients in one
// process and in virtual time. A seed chooses all events: messages that are lost, late or cut off,
// lists that are stale, clocks that jump, keys that rotate, processes that die, and operators who
// revoke, edit and roll back.
//
//	network   connections of memory between named hosts, and their faults
//	world     the hosts: issuers, API servers, Redis, upstream, replicas (package server)
//	events    the steps that a seed chooses from, and the requests
//	oracle    the grants that are allowed and those that are required, written anew
//
// The oracle knows all events, and from the documentation how late a replica may hear of each. A grant
// must be right in one of the worlds that the replica can know, and a refusal must be too. If an answer
// is missing, a replica must say so. The oracle does not import the code that decides.
//
// These parts are not simulated: TLS of the replicas' listeners, events of files, clocks of replicas
// that differ, token endpoints of upstreams, controllers. miniredis stands in for Redis; the suite of
// package statetest holds both to the same behaviour.
//
// The package has tests only: make simulate.
package simulation
