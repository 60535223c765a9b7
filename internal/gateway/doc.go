// Package gateway stands in front of registries whose token endpoint cannot be chosen.
// It answers as a registry does, judges the tokens of Pullpass as a registry does, and
// passes requests on with a credential of the upstream's.
//
//	Handler   parse, authenticate, authorize, forward, record
//	Names     which upstream the name of a repository means
//	judge     whom a token lets do what, by distribution's own code
//
// Nothing of what a client sent is passed on as it is, and nothing of what an upstream
// answered: addresses are built from parsed parts, headers are those that are named
// here. Bodies are streamed.
package gateway
