// Package file reads files that other programs can replace: the configuration and the files that it
// names.
//
// It reads only regular files, up to the caller's limit. A directory into which others write can
// hold other kinds: opening a FIFO can wait forever for a writer, and a device may have no end. The
// package therefore checks the type that package io/fs reports, before and after it opens the file.
//
// It knows nothing of the contents of a file.
package file
