// Package controller contains the common parts of controllers: clients of the API server that know
// only the types in use, a Lease that one replica holds, leader election with it, and a sink for
// events.
//
// k8s.io/client-go/kubernetes, its informers and its leader election would link every API group.
package controller
