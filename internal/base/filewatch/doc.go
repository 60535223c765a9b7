// Package filewatch calls back when the content of a file changes: also if the file is replaced, is
// created later, or is behind the symbolic links of a Kubernetes volume.
//
// It compares contents and knows nothing of their meaning. The callback reads the files again with
// package file, because their type may have changed.
package filewatch
