// Package setup opens the objects that a configuration describes: the policy, the verifier, signing
// keys, connections to API servers, state. Commands that serve, explain or check use the same code.
//
// It starts no background work. Objects that need it have a Run method for the caller. It knows no
// listeners and no flags.
package setup
