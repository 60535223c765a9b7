// Package containerd reads the settings of containerd that determine whether it reads a hosts.toml,
// and where. It follows imports as containerd does, and reads only files.
package containerd
