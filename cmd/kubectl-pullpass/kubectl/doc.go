// Package kubectl answers questions about Pullpass with the rights of a kubeconfig, and no others.
//
//	Cluster       the API server of a kubeconfig
//	MissingRight  a right that the user needs and does not have
//	Reasons       why a pod was refused: its events, its ServiceAccount, its RepositoryAccess objects
//	Ask           what Pullpass itself says, through a port-forward to its console
//
// A developer usually may not see Pullpass. So each part of an answer stands for itself: a part that
// the user may not read is replaced by the right that is missing.
package kubectl
