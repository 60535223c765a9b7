// Package signing holds the keys that sign tokens, their certificates and CAs,
// and what registries are given to trust them.
//
//	FileKeys     keys that others put in place: a Secret, cert-manager, people
//	ManagedKeys  keys that this package makes and changes, in a directory
//	SigningKey   signs a payload: Sign
//	MarshalJWKS, MarshalCertificates   what is published
//
// It knows of a token no more than that it has a shortest life: what tokens say
// is registryauth's. It uses no network.
//
// Sources: RFC 5280 (certificates), RFC 7515 (signature, x5c), RFC 7517 (key
// sets), RFC 7518 and RFC 8037 (algorithms), RFC 7638 (key ids).
package signing
