// Package registryauth speaks the registry's token protocol: the scope
// grammar, the token request in all its wire forms, the answer and its errors,
// and the signed token that a registry checks by itself.
//
//	ParseRequest  wire form  → Request{Service, Scopes, Credential, …}
//	Issuer.Issue  Grant      → Token (a signed JWT)
//	WriteToken    Token      → 200
//	WriteFailure  Failure    → 4xx, 5xx
//
// It decides nothing: who may have what is the exchange's business. It does no
// network I/O; signing keys come from files (FileKeys) or from a directory of
// its own (ManagedKeys).
//
// Sources: distribution's token, scope, jwt and oauth documents
// (docs/content/spec/auth), RFC 6749 (form and errors), RFC 6750 (Bearer),
// RFC 7515/7517/7519/7638, RFC 7617 (Basic), RFC 8693 (token exchange).
package registryauth
