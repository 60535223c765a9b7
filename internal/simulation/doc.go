// Package simulation runs many replicas, clusters, issuers, a Redis, an upstream and clients in one
// process and in virtual time. A seed chooses all events: messages that are lost, late or cut off,
// lists that are stale, clocks that jump, keys that rotate, processes that die, and operators who
// revoke, edit and roll back.
//
//	network      connections of memory between named hosts, and their faults
//	clock        clocks that drift and jump
//	world        the hosts: issuers, API servers, Redis, upstream, replicas (package server)
//	apiserver    an API server with the admission policies of the controller of pull secrets
//	keepers      processes of that controller, and the ServiceAccounts that opt in
//	events       the steps that a seed chooses from, and the requests
//	oracle       the grants that are allowed and those that are required, written anew
//	controllers  the same for controllers: one leads, and after a fault all is as wanted
//
// The oracle knows all events, and from the documentation how late a replica may hear of each. A grant
// must be right in one of the worlds that the replica can know, and a refusal must be too. If an answer
// is missing, a replica must say so. The oracle does not import the code that decides.
//
// A host dies at any time, or after a number of writes to its connections, so between any two steps of a
// change. Replicas' clocks are up to 20 seconds off, and up to half a percent fast or slow.
//
// These parts are not simulated: TLS of the replicas' listeners, events of files, token endpoints of
// upstreams, events of pods. All timers run by the time itself. So does the verification of issued tokens,
// which is distribution's. A token that is accepted after its end would not show: no token is issued for
// it. miniredis stands in for Redis; the suite of package statetest holds both to the same behaviour.
//
// The package has tests only: make simulate.
package simulation
