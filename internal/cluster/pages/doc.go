// Package pages lists objects of API servers in pages of bounded size in bytes. The authors of
// objects choose how large they are: a page of 500 objects can have 1 MiB or 700 MiB.
//
// The caller chooses which parts of the objects are kept.
package pages
