// Package file reads files that somebody else can replace: the configuration,
// and what it names.
//
// It reads regular files only, and no more of one than its caller allows. A
// directory into which others write can hold anything: opening a FIFO waits for
// a writer that may never come, and a device may have no end. Package io/fs
// says what a file is; this package refuses it by that, before and after it is
// opened.
//
// It knows nothing of what is in a file.
package file
