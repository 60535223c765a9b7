// Package policyobjects holds policy as objects of a cluster: the form of AccessPolicy and
// RepositoryAccess objects, in a cluster and in files. The CustomResourceDefinitions are generated
// from its types, which are those of package policy.
//
//	Set            objects from files: read, checked and evaluated like those of a cluster
//	ToObject       a policy file → an AccessPolicy; Set.ToFile turns them back
//
// It does not own the meaning of their specs (package policy), nor how they are watched (package
// kube).
package policyobjects
