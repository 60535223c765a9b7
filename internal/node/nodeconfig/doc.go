// Package nodeconfig writes the configuration that nodes need to pull with their pods' tokens: the
// kubelet's credential provider, RBAC, flags and hosts.toml. It also lints existing files. A
// finding names the file, line, field, fault and remedy.
package nodeconfig
