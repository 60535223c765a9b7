// Package filewatch calls back when the content of a file changes: also when it is
// replaced, comes later, or lies behind the symbolic links of a Kubernetes volume.
//
// It compares contents and knows nothing of what is in them. What it calls reads
// the files anew, with package file: something else may stand in their place.
package filewatch
