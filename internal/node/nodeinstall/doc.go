// Package nodeinstall installs the files that a node needs to pull with its pods' tokens, maintains
// them, and removes them again. These are the kubelet's plugin and its configuration, the kubelet's
// flags, and containerd's hosts.toml.
//
// A Profile knows the paths of a platform. Plan compares the node with the desired state and writes
// nothing. Apply carries out the plan. Then Watch restarts the kubelet. It runs outside of the pod,
// and restores all files if the kubelet does not become healthy. Uninstall restores the original
// files, byte for byte.
//
// A file belongs to others unless the state records that Pullpass wrote it. The package asks no API
// server, and package hostfs keeps it below the node's root.
package nodeinstall
