// Package setup makes what a configuration describes: the policy, the verifier,
// signing keys, connections to API servers, state. Whoever serves, explains or
// checks gets the same from here.
//
// It starts nothing: what works in the background has a Run, for the caller to
// call. It knows no listeners and no flags.
package setup
