// Package node contains the packages that prepare nodes to pull with the tokens of their pods.
//
//	nodeconfig   prints the files of a node, and lints existing files
//	nodeinstall  installs the files on a node, maintains them, and removes them again
//	rollout      installs the nodes of a cluster one after the other
//	progress     reads the state that rollout publishes
//	hoststoml    reports whether a hosts.toml sends requests only to the gateway
//	containerd   reads the settings of containerd that determine its hosts.toml
//	kubelet      knows how each version of the kubelet handles credential providers and images
//	hostfs       reads and writes files below a host's root, and never follows a link out of it
//
// The proxy serves without these packages. The kubelet's plugin links only hoststoml.
package node
