// Package hostfs reads and changes files below a directory where a host's root
// is mounted, or on the host itself.
//
// Whatever symbolic links say, nothing outside that directory is read or
// written. Links lead where they lead on the host: an absolute one begins at the
// directory, and .. stays below it (RESOLVE_IN_ROOT of openat2). The way to a
// file is walked with open directories, one name at a time, so that a link that
// is put in place of a directory meanwhile leads nowhere.
//
// The last name of a path is never followed: what is read, written or removed is
// what has that name. It knows nothing of what is in a file.
package hostfs
