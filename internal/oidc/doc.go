// Package oidc authenticates the tokens of Kubernetes ServiceAccounts and of other configured
// issuers (CI systems, clouds, SPIFFE). Verify takes a token and returns an Identity.
//
// A Verifier knows only the configured issuers. Verify makes cheap checks first: size and form, the
// issuer's name, the header, the claims, then keys and signature. Keys come from OpenID Connect
// discovery, a JWKS URL or a JWKS file. They are fetched lazily and refreshed in the background.
// Many tokens with unknown key ids do not cause more fetches. A verified token is remembered until
// it expires or its key is withdrawn.
//
// If a token names an unknown key, the issuer is asked once per interval, however many such tokens
// arrive. If the issuer does not publish the key, the token is refused for good (refusal.TokenUnknownKey).
// If the issuer cannot be reached, the key may be new, so the failure is refusal.IssuerUnavailable. While
// the issuer is down, known keys stay valid up to Issuer.MaxKeyAge.
//
// The same code verifies all tokens. Only the checks of their claims differ. Tokens of a pod have
// the claims of Kubernetes. Other tokens are checked by the issuer's profile (package identity). An
// issuer has tokens of one kind only: claims of Kubernetes are refused unless the issuer is a
// cluster's.
//
// The package checks only facts that the token itself proves. Facts that can change while a token
// lives are checked elsewhere on every request: policy, annotations, revocation, whether the pod
// still exists, and the caller's address.
//
// Sources: RFC 7515, RFC 7519, RFC 8725 (JSON Web Token Best Current Practices), OpenID Connect
// Discovery 1.0, KEP-1205 (bound tokens), KEP-4193 (node claim and token id), KEP-2799 (legacy
// tokens).
package oidc
