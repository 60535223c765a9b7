// Package migration plans how a cluster stops using imagePullSecrets: from what
// package pullsecrets reads of it, and what the policy grants, to the next step for
// each object, in an order that breaks no pull. It changes nothing.
package migration
