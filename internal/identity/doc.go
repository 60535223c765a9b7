// Package identity knows callers that are no pods: CI jobs, and workloads of
// clouds and of SPIFFE. For each kind of issuer, a Profile says which claims its
// tokens have and of what type, which of these are ids that are never given to
// somebody else, which issuers are shared by everybody, and how a run and what it
// builds are named.
//
// It judges claims alone. Signature, audience and time are package oidc's, what
// claims are worth is package policy's.
package identity
