// Package hostfs reads and changes files below a directory where a host's root is mounted, or on
// the host itself.
//
// Nothing outside that directory is read or written, whatever the symbolic links. Links lead to the
// same file as on the host: an absolute link begins at the directory, and .. stays below it
// (RESOLVE_IN_ROOT of openat2). The path is walked with open directories, one name at a time. So a
// link that replaces a directory meanwhile has no effect.
//
// The last name of a path is never followed: operations apply to the link itself. The package does
// not interpret the content of files.
package hostfs
