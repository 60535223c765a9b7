// Package controller has what controllers have in common: clients of the API server
// that know the types that are used and nothing else, a Lease that one of many holds,
// the lead that it gives, and a sink for events.
//
// k8s.io/client-go/kubernetes, its informers and its leader election link every API
// group there is.
package controller
