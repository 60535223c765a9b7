package strictyaml

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pullpass/pullpass/internal/base/term"
)

// Node is a part of a YAML document, with its path. Its methods report a fault if the value has
// another type than they return.
type Node struct {
	faults *Faults
	file   string
	Path   string
	Value  any
}

// ParseDocument reads the only YAML document of a file. data may have at most limit bytes. fill
// says what to write into an empty file.
func ParseDocument(name string, data []byte, limit int, f *Faults, fill string) (Node, bool) {
	fault := func(format string, args ...any) (Node, bool) {
		f.add(name, "", format, args...)
		return Node{}, false
	}
	switch {
	case len(data) > limit:
		return fault("has %d bytes; at most %d are read: split it into several files", len(data), limit)
	case !utf8.Valid(data):
		return fault("is not UTF-8: save it as UTF-8")
	}
	root, _, err := Parse(data, limit)
	switch {
	case errors.Is(err, ErrEmpty):
		return fault("is empty: %s", fill)
	case errors.Is(err, ErrSeveral):
		return fault("has more than one YAML document: put each into a file of its own")
	case err != nil:
		return fault("is not valid YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	value, problems := Value(root)
	for _, problem := range problems {
		fault("is not valid YAML: %s", problem)
	}
	if len(problems) > 0 {
		return Node{}, false
	}
	if value == nil {
		return fault("is empty: %s", fill)
	}
	return Node{faults: f, file: name, Value: value}, true
}

// NewNode returns a node for a value that was decoded elsewhere, of a type that Value returns. file
// names its origin.
func NewNode(file string, value any, f *Faults) Node {
	return Node{faults: f, file: file, Value: value}
}

// Faults returns the collection to which the node reports.
func (n Node) Faults() *Faults { return n.faults }

func (n Node) Fault(format string, args ...any) { n.faults.add(n.file, n.Path, format, args...) }

// Origin names the file and the path of the node, as faults do.
func (n Node) Origin() string { return n.file + ": " + n.Path }

// FaultAt reports a fault of a missing field.
func (n Node) FaultAt(field, format string, args ...any) {
	n.At(field, nil).Fault(format, args...)
}

func (n Node) At(field string, value any) Node {
	if n.Path != "" {
		field = n.Path + "." + field
	}
	n.Path, n.Value = field, value
	return n
}

// FieldNames returns the names of a struct's fields in a document, from their json tags.
func FieldNames[T any]() []string {
	var names []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if !field.Anonymous {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			names = append(names, name)
		}
	}
	return names
}

// Fields returns the fields that are present, or nil if there are none. Every unknown field is a
// fault.
func (n Node) Fields(known ...string) map[string]Node {
	object, ok := n.Value.(map[string]any)
	if !ok {
		n.Fault("%s: write the fields %s", NotA("a mapping", n.Value), strings.Join(known, ", "))
		return nil
	}
	if len(object) == 0 {
		n.Fault("is empty: write at least one of the fields %s", strings.Join(known, ", "))
		return nil
	}
	fields := make(map[string]Node, len(object))
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if !slices.Contains(known, name) {
			n.Fault("unknown field %s: the fields are %s", term.QuoteName(name), strings.Join(known, ", "))
			continue
		}
		fields[name] = n.At(name, object[name])
	}
	return fields
}

// Require reports a field whose value is not want.
func (n Node) Require(fields map[string]Node, name, want string) {
	if field, ok := fields[name]; !ok {
		n.FaultAt(name, "is missing: write %s", want)
	} else if field.Value != want {
		field.Fault("must be %s: no other is known here", want)
	}
}

// RequireVersion reports an apiVersion that is not read.
func (n Node) RequireVersion(fields map[string]Node) {
	if field, ok := fields["apiVersion"]; !ok {
		n.FaultAt("apiVersion", "is missing: write %s", CurrentVersion)
	} else if !n.faults.AcceptVersion(n.file, field.Value) {
		field.Fault("is not a version that is read here: write %s", CurrentVersion)
	}
}

// List returns the elements. An empty list is a fault, because it could silently disable a check or
// grant nothing.
func (n Node) List() []Node {
	list, ok := n.Value.([]any)
	switch {
	case !ok:
		n.Fault("%s: write a list", NotA("a list", n.Value))
	case len(list) == 0:
		n.Fault("the list is empty: fill it or remove the field")
	}
	nodes := make([]Node, len(list))
	for i, value := range list {
		nodes[i] = n
		nodes[i].Path, nodes[i].Value = fmt.Sprintf("%s[%d]", n.Path, i), value
	}
	return nodes
}

// Entry is a part of a mapping whose keys are data, not fields.
type Entry struct {
	Key string
	Node
}

// Entries returns the entries of a mapping, sorted by key. It returns none if the node is not a
// mapping.
func (n Node) Entries() []Entry {
	object, _ := n.Value.(map[string]any)
	entries := make([]Entry, 0, len(object))
	for _, key := range slices.Sorted(maps.Keys(object)) {
		entry := n
		entry.Path, entry.Value = fmt.Sprintf("%s[%s]", n.Path, term.QuoteName(key)), object[key]
		entries = append(entries, Entry{key, entry})
	}
	return entries
}

// Text returns a non-empty string. YAML 1.1 reads no, on or 1e3 as other types.
func (n Node) Text() (string, bool) {
	text, ok := n.Value.(string)
	switch {
	case !ok:
		n.Fault("%s: write it in quotes", NotA("text", n.Value))
	case text == "":
		n.Fault("is empty: fill it or remove it")
	}
	return text, text != ""
}

func (n Node) Boolean() bool {
	value, ok := n.Value.(bool)
	if !ok {
		n.Fault("%s: write true or false", NotA("a boolean", n.Value))
	}
	return value
}

func NotA(wanted string, value any) string {
	found := "a number"
	switch value.(type) {
	case nil:
		return "has no value"
	case bool:
		found = "a boolean"
	case string:
		found = "text"
	case []any:
		found = "a list"
	case map[string]any:
		found = "a mapping"
	}
	return "is " + found + ", not " + wanted
}
