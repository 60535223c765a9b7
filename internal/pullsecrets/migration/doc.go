// Package migration plans how a cluster stops using imagePullSecrets. It compares the inventory of
// package pullsecrets with the grants of the policy. The plan has the next step for each object, in
// an order that breaks no pull. The package changes nothing.
package migration
