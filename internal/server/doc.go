// Package server runs the public and the admin listener and reports readiness. When files change,
// it replaces the state that serves requests.
//
//	generation   the complete state for serving a request; it never changes
//	reconcile    the goroutine that makes every change: read, prepare, swap
//	connections  bounds on the number of clients and on the size of their requests
//
// One generation serves a request from its beginning to its end. Files that do not load never
// replace a working state.
package server
