// Package nodeproof says whether a caller is the node that a token names
// (KEP-4193): by the kubelet's client certificate, or by an address of the Node
// object.
//
//	Config, Check  what a cluster asks of callers, and what is wrong with that
//	Caller         where a request comes from, as the listener saw it
//	Judge.Try      the methods in their order, until one suffices: a Proof
//
// It owns what a kubelet's certificate says. It does not own which CAs sign for a
// cluster and what leads to them (package nodecert), where Node objects come from,
// or what becomes of a caller without proof (package exchange).
package nodeproof
