// Package controller contains the common parts of controllers: a Lease that one replica holds,
// leader election with it, and a sink for events.
//
// The leader election of k8s.io/client-go would link every API group.
package controller
