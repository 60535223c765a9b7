// Package signing holds the keys that sign tokens, their certificates and CAs, and the published
// files by which registries trust them.
//
//	FileKeys     keys that others put in place: a Secret, cert-manager, operators
//	ManagedKeys  keys that this package makes and rotates, in a directory
//	SigningKey   signs a payload: Sign
//	MarshalJWKS, MarshalCertificates   the published files
//
// Of tokens, it knows only their minimum lifetime. Package registryauth defines their contents. It
// uses no network.
//
// Sources: RFC 5280 (certificates), RFC 7515 (signature, x5c), RFC 7517 (key sets), RFC 7518 and
// RFC 8037 (algorithms), RFC 7638 (key ids).
package signing
