// Package assertion makes Pullpass an OpenID issuer for the upstreams of the gateway. An assertion
// tells a cloud or a registry which ServiceAccount sends the request. The cloud grants that
// ServiceAccount its rights, so Pullpass stores no secret.
//
//	Issuer           signs assertions: Sign
//	ServeDiscovery   the discovery document, at DiscoveryPath
//	ServeKeys        the keys that verify assertions, at KeysPath
//
// An assertion lives for a minute, because it is exchanged at once. Its keys sign only assertions:
// an upstream that trusts assertions must not trust the tokens of a registry, nor the other way
// round.
//
// Sources: RFC 7519 (JWT), RFC 7523 (assertions), OpenID Connect Discovery 1.0.
package assertion
