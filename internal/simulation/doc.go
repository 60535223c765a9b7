// Package simulation runs many replicas, clusters, issuers, a Redis, an upstream and clients in one
// process and in virtual time. A seed chooses all events: messages that are lost,
// late or cut off, keys that rotate, processes that die, operators who revoke, edit and roll back.
//
//	network   connections of memory between named hosts, and their faults
//	world     the hosts: issuers, API servers, Redis, upstream, replicas (package server)
//	events    the steps that a seed chooses from
//	oracle    the grants that are allowed and those that are required, written anew
//
// The oracle knows what happened, and when each replica can have heard of it at the latest. It does not
// import the code that decides. The package has tests only: make simulate.
package simulation
