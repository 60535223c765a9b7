// Package registryauth speaks the registry's token protocol: the scope
// grammar, the token request in all its wire forms, the answer and its errors,
// and the signed token that a registry checks by itself.
//
//	ParseRequest  wire form  → Request{Service, Scopes, Credential, …}
//	Issuer.Issue  Grant      → Token (a signed JWT)
//	WriteToken    Token      → 200
//	WriteFailure  Failure    → 4xx, 5xx
//
// It decides nothing: who may have what is package policy's business. It holds no
// keys: signing does. It uses no network.
//
// Sources: distribution's token, scope, jwt and oauth documents
// (docs/content/spec/auth), RFC 6749 (form and errors), RFC 6750 (Bearer),
// RFC 7519 (JWT), RFC 7617 (Basic), RFC 8693 (token exchange).
package registryauth
