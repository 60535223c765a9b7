// Package nodeinstall puts what nodes need to pull with their pods' tokens on a
// node, keeps it there, and takes it away again: the kubelet's plugin and its
// configuration, the kubelet's flags, and containerd's hosts.toml.
//
// A Profile knows where a platform has them. Plan compares the node with what is
// desired and writes nothing. Apply writes what the plan says; then the kubelet is
// restarted by Watch, which runs outside of the pod and puts everything back if
// the kubelet does not come up with it. Uninstall leaves the files as they were,
// byte for byte.
//
// What is on the node belongs to others until the state says that we wrote it. It
// asks no API server, and package hostfs keeps it below the node's root.
package nodeinstall
