// Package server serves: the public and the admin listener, readiness, and what
// replaces what serves when files change.
//
//	generation   all that serves a request, put together; it never changes
//	reconcile    the goroutine that makes every change: read, prepare, swap
//	connections  bounds on how many clients may be connected, and on what they send
//
// A request is served by one generation from its beginning to its end. What does
// not load never replaces what works.
package server
