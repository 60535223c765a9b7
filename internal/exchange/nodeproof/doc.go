// Package nodeproof verifies that a caller is the node that a token names (KEP-4193): by the
// kubelet's client certificate, or by an address of the Node object.
//
//	Config, Check  the proof that a cluster requires of callers, and the faults of such a setting
//	Caller         the origin of a request, as the listener saw it
//	Judge.Try      the methods in their order, until one suffices: a Proof
//	CAs, Chains    does a certificate lead to a CA of its own cluster, and to no CA of a different one
//
// The package owns the names in a kubelet's certificate. It does not own the files with the CAs
// (package server), the source of Node objects, or the handling of a caller without proof (package
// exchange).
package nodeproof
