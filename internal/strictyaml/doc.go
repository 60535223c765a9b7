// Package strictyaml reads YAML of which every word counts: configurations,
// policies and their tests, manifests. It names what is wrong by field and line,
// and all of it at once.
//
// Reading costs in proportion to the bytes of a file. Aliases are never written
// out, and one document may not stand for more bytes than its file may have.
//
// It reads no files and knows nothing of what a document means.
package strictyaml
