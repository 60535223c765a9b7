package exchange

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/pullpass/pullpass/internal/strictyaml"
	"github.com/pullpass/pullpass/internal/term"
)

// maxFaults is how many faults are reported at once.
const maxFaults = 100

// faults collects everything that is wrong with files that are read together.
type faults struct {
	list []error
	more int // not kept
}

func (f *faults) add(file, path, format string, args ...any) {
	if len(f.list) == maxFaults {
		f.more++
		return
	}
	where := file + ": "
	if path != "" {
		where += path + ": "
	}
	f.list = append(f.list, errors.New(where+fmt.Sprintf(format, args...)))
}

func (f *faults) err() error {
	if f.more > 0 {
		return errors.Join(append(f.list, fmt.Errorf("and %d more faults", f.more))...)
	}
	return errors.Join(f.list...)
}

const maxQuoted = 80 // bytes of a text in a message

// node is a part of a YAML document, and where it stands. Its methods report a
// value that is not what they return.
type node struct {
	faults *faults
	file   string
	path   string
	value  any
}

// parseDocument reads the only YAML document of a file, of which at most limit
// bytes are read. fill says what to write into one that is empty.
func parseDocument(name string, data []byte, limit int, f *faults, fill string) (node, bool) {
	fault := func(format string, args ...any) (node, bool) {
		f.add(name, "", format, args...)
		return node{}, false
	}
	switch {
	case len(data) > limit:
		return fault("has %d bytes; at most %d are read: split it into several files", len(data), limit)
	case !utf8.Valid(data):
		return fault("is not UTF-8: save it as UTF-8")
	}
	root, _, err := strictyaml.Parse(data, limit)
	switch {
	case errors.Is(err, strictyaml.ErrEmpty):
		return fault("is empty: %s", fill)
	case errors.Is(err, strictyaml.ErrSeveral):
		return fault("has more than one YAML document: put each into a file of its own")
	case err != nil:
		return fault("is not valid YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	value, problems := strictyaml.Value(root)
	for _, problem := range problems {
		fault("is not valid YAML: %s", problem)
	}
	if len(problems) > 0 {
		return node{}, false
	}
	if value == nil {
		return fault("is empty: %s", fill)
	}
	return node{faults: f, file: name, value: value}, true
}

func (n node) fault(format string, args ...any) { n.faults.add(n.file, n.path, format, args...) }

// origin says where the node stands, as faults do.
func (n node) origin() string { return n.file + ": " + n.path }

// faultAt reports a fault of a field that is not there.
func (n node) faultAt(field, format string, args ...any) {
	n.at(field, nil).fault(format, args...)
}

func (n node) at(field string, value any) node {
	if n.path != "" {
		field = n.path + "." + field
	}
	n.path, n.value = field, value
	return n
}

// fields returns the fields that are there, and nil if there are none. Every
// field that is not known is a fault.
func (n node) fields(known ...string) map[string]node {
	object, ok := n.value.(map[string]any)
	if !ok {
		n.fault("%s: write the fields %s", notA("a mapping", n.value), strings.Join(known, ", "))
		return nil
	}
	if len(object) == 0 {
		n.fault("is empty: write at least one of the fields %s", strings.Join(known, ", "))
		return nil
	}
	fields := make(map[string]node, len(object))
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if !slices.Contains(known, name) {
			n.fault("unknown field %s: the fields are %s", term.Quote(name, maxQuoted), strings.Join(known, ", "))
			continue
		}
		fields[name] = n.at(name, object[name])
	}
	return fields
}

// require reports a field that is not exactly what it must be.
func (n node) require(fields map[string]node, name, want string) {
	if field, ok := fields[name]; !ok {
		n.faultAt(name, "is missing: write %s", want)
	} else if field.value != want {
		field.fault("must be %s: no other is known here", want)
	}
}

// list returns the elements. An empty list is a fault: it would switch a check
// off, or grant nothing, without anybody noticing.
func (n node) list() []node {
	list, ok := n.value.([]any)
	switch {
	case !ok:
		n.fault("%s: write a list", notA("a list", n.value))
	case len(list) == 0:
		n.fault("the list is empty: fill it or remove the field")
	}
	nodes := make([]node, len(list))
	for i, value := range list {
		nodes[i] = n
		nodes[i].path, nodes[i].value = fmt.Sprintf("%s[%d]", n.path, i), value
	}
	return nodes
}

// text returns a string that is not empty. YAML 1.1 reads no, on or 1e3 as
// something else.
func (n node) text() (string, bool) {
	text, ok := n.value.(string)
	switch {
	case !ok:
		n.fault("%s: write it in quotes", notA("text", n.value))
	case text == "":
		n.fault("is empty: fill it or remove it")
	}
	return text, text != ""
}

func (n node) boolean() bool {
	value, ok := n.value.(bool)
	if !ok {
		n.fault("%s: write true or false", notA("a boolean", n.value))
	}
	return value
}

func notA(wanted string, value any) string {
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
