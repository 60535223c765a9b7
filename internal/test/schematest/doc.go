// Package schematest makes JSON Schemas of Go types, for editors, and holds the
// files in docs to them. It is for tests: the types' own packages call it, and
// "make docs" writes the files anew.
//
// A field's json tag is its name, its comment the description, and the default
// is what the value holds. Its schema tag holds words: required; nonempty, of a
// text, list or mapping and of the texts in a list; label, of DNS; https; text,
// which the field may be instead of a mapping; const=VALUE; either=GROUP, of fields
// that are required together, and no other group beside them; and, of numbers, above=,
// min= and max=. A type with a method Values has a closed set of values.
package schematest
