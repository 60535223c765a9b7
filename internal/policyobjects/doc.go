// Package policyobjects is policy as objects of a cluster: what AccessPolicy and
// RepositoryAccess objects look like, in a cluster and in files. The
// CustomResourceDefinitions are made of its types, which are those of package policy.
//
// It does not own what their specs mean (package policy), nor how they are watched
// (package kube).
package policyobjects
