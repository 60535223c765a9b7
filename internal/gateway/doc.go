// Package gateway serves registries whose token endpoint cannot be configured. It responds like a
// registry, verifies the tokens of Pullpass like a registry, and forwards requests with a
// credential for the upstream.
//
//	Handler   parse, authenticate, authorize, forward, record
//	Names     the upstream that the name of a repository begins with
//	judge     the holder and the access of a token, by distribution's own code
//
// Neither a client's request nor an upstream's response is forwarded unchanged. Addresses are built
// from parsed parts, and only headers that this package lists are forwarded. Bodies are streamed.
package gateway
