// Package assertion makes Pullpass an OpenID issuer for the upstreams of the
// gateway: it tells a cloud or a registry which ServiceAccount is asking, so that
// its rights are granted there and no secret lies here.
//
//	Issuer           signs assertions: Sign
//	ServeDiscovery   the discovery document, at DiscoveryPath
//	ServeKeys        the keys that verify assertions, at KeysPath
//
// An assertion lives for a minute: it is exchanged at once. Its keys sign nothing
// else, for who trusts them must not trust the tokens of a registry, nor the other
// way round.
//
// Sources: RFC 7519 (JWT), RFC 7523 (assertions), OpenID Connect Discovery 1.0.
package assertion
