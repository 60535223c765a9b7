// Package identity knows callers that are not pods: CI jobs, and workloads of clouds and of SPIFFE.
// For each kind of issuer, a Profile defines:
//
//   - the claims of its tokens, and their types
//   - the claims that are ids, which are never reused
//   - the issuers that all customers share
//   - the claims that name a run and the project that it builds
//
// It checks only claims. Package oidc checks signature, audience and times. Package policy decides
// which claims allow access.
package identity
