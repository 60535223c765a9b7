// Package strictyaml reads YAML in which every word counts: configurations, policies and their
// tests, manifests. It reports all faults at once, each with its field and line.
//
// The cost of reading is proportional to the bytes of a file. Aliases are never expanded in memory.
// With its aliases expanded, a document may not exceed the limit of its file.
//
// It reads no files. Of the meaning of a document, it knows only the apiVersion of Pullpass's own.
package strictyaml
