// Package oidc authenticates Kubernetes ServiceAccount tokens, and those of other
// issuers that are configured (CI systems, clouds, SPIFFE): token in, Identity out.
//
// A Verifier knows the configured issuers and nothing else. Verify works from
// cheap to dear: size and form, the issuer's name, the header, the claims, and
// only then keys and signature. Keys come from OpenID Connect discovery, a
// JWKS URL or a JWKS file; they are fetched lazily, refreshed in the
// background, and never because a caller sent many unknown key ids. A verified
// token is remembered until it expires or its key is withdrawn.
//
// When a token names a key that is not at hand, the issuer is asked once per
// interval, however many such tokens come. If it says that the key does not
// exist, the token is refused for good (ReasonUnknownKey). If it cannot be
// asked, the key may be new, so the failure is ReasonUnavailable. Known keys go
// on working while the issuer is down, up to Issuer.MaxKeyAge.
//
// All tokens are verified by the same code. Only what their claims have to be
// differs: those of a pod are Kubernetes', those of others are judged by the
// issuer's profile (package identity). An issuer's tokens are one or the other:
// claims of Kubernetes from another issuer than a cluster's are refused.
//
// The package judges what the token alone can tell. Whatever can change while
// a token lives (policy, annotations, revocation, whether the pod is still
// there, who calls) is judged elsewhere on every request.
//
// Sources: RFC 7515, RFC 7519, RFC 8725 (JSON Web Token Best Current
// Practices), OpenID Connect Discovery 1.0, KEP-1205 (bound tokens), KEP-4193
// (node claim and token id), KEP-2799 (legacy tokens).
package oidc
