// Package nodeconfig writes what nodes need so that they pull with their pods'
// tokens (the kubelet's credential provider, RBAC, flags, hosts.toml), and judges
// what is there: a finding names file, line, field, what is wrong, and the remedy.
package nodeconfig
