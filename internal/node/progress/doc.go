// Package progress is the published state of the installation on nodes.
//
//	Record   the state of a node, in an annotation and a label of its Node
//	Stop     why no further node is changed, in an annotation of the Lease
//	List     all nodes, for people
//
// Package rollout writes it. Programs that only read it do not link the installer.
package progress
