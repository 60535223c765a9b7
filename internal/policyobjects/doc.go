// Package policyobjects is policy as objects of a cluster: what AccessPolicy and
// RepositoryAccess objects look like, in a cluster and in files. The
// CustomResourceDefinitions are made of its types, which are those of package policy.
//
//	Set            objects from files: read, checked, asked as a cluster's are
//	ToObject       a policy file → an AccessPolicy; Set.ToFile turns them back
//
// It does not own what their specs mean (package policy), nor how they are watched
// (package kube).
package policyobjects
