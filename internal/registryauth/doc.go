// Package registryauth implements the token protocol of registries: the scope grammar, the token
// request in all its wire forms, the response and its errors, and the signed token that a registry
// verifies.
//
//	ParseRequest  wire form  → Request{Service, Scopes, Credential, …}
//	Issuer.Issue  Grant      → Token (a signed JWT)
//	WriteToken    Token      → 200
//	WriteFailure  Failure    → 4xx, 5xx
//
// It makes no access decisions: package policy does. It holds no keys: package signing does. It
// uses no network.
//
// Sources: distribution's token, scope, jwt and oauth documents (docs/content/spec/auth), RFC 6749
// (form and errors), RFC 6750 (Bearer), RFC 7519 (JWT), RFC 7617 (Basic), RFC 8693 (token
// exchange).
package registryauth
