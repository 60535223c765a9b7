package main

import (
	"encoding"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/names"
	"github.com/pullpass/pullpass/internal/strictyaml"
	"github.com/pullpass/pullpass/internal/term"
)

// ConfigFault is one thing that is wrong with a configuration.
type ConfigFault struct {
	File    string // as given on the command line
	Path    string // of the field: clusters[0].node.claim; empty: the file as a whole
	Problem string // what is wrong, the value, and the remedy
	Err     error  // the cause, if there is one; Problem says it already
}

func (f *ConfigFault) Error() string {
	return strings.Join(nonEmpty(f.File, f.Path, f.Problem), ": ")
}

func (f *ConfigFault) Unwrap() error { return f.Err }

// maxConfigFaults is how many faults of a document are kept.
const maxConfigFaults = 100

// configDecoder reads a YAML document into structs by their json tags. It knows
// no lenience: unknown and repeated fields, names in another case, null, and
// values of another type are faults, and all of them are found at once. It works on YAML
// nodes because only they still tell a repeated field from one, and the word
// off from false.
type configDecoder struct {
	file    string
	faults  []*ConfigFault
	set     map[string]bool // paths of the fields that the file names
	more    int             // faults that are not kept
	foreign bool            // the file is not a configuration at all
}

// defaulter fills in an element of a list before its fields are read.
type defaulter interface{ setDefaults() }

func (d *configDecoder) fault(path, format string, args ...any) {
	if len(d.faults) == maxConfigFaults {
		d.more++
		return
	}
	d.faults = append(d.faults, &ConfigFault{File: d.file, Path: path, Problem: fmt.Sprintf(format, args...)})
}

// result joins the faults, or is nil.
func (d *configDecoder) result() error {
	all := make([]error, len(d.faults))
	for i, fault := range d.faults {
		all[i] = fault
	}
	if d.more > 0 {
		all = append(all, fmt.Errorf("and %d more faults", d.more))
	}
	return errors.Join(all...)
}

// document reads the only document of data. When the file is something else
// than a configuration, nothing more is said about it.
func (d *configDecoder) document(data []byte, c *Config) {
	root, err := parseYAML(data)
	if err != nil {
		d.foreign = true
		d.fault("", "%v", err)
		return
	}
	for _, want := range []struct{ path, value string }{{"apiVersion", configAPIVersion}, {"kind", configKind}} {
		n := strictyaml.Field(root, want.path)
		switch {
		case n == nil:
			d.fault(want.path, "is missing; write %s", want.value)
		case n.Value != want.value:
			d.foreign = true
			d.fault(want.path, "is another one (%s); this file must have %s", show(n), want.value)
		}
	}
	if !d.foreign {
		d.value("", root, reflect.ValueOf(c).Elem())
	}
}

func parseYAML(data []byte) (*yaml.Node, error) {
	root, _, err := strictyaml.Parse(data, maxConfigBytes)
	switch {
	case errors.Is(err, strictyaml.ErrEmpty):
		return nil, errors.New("is empty; see examples/pullpass.yaml and docs/configuration.md")
	case errors.Is(err, strictyaml.ErrSeveral):
		return nil, fmt.Errorf("%w; only one is read", err)
	case err != nil:
		return nil, err
	}
	root = strictyaml.Resolve(root)
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("must be a mapping (is %s); see examples/pullpass.yaml and docs/configuration.md", show(root))
	}
	return root, nil
}

func (d *configDecoder) value(path string, n *yaml.Node, into reflect.Value) {
	n = strictyaml.Resolve(n)
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		d.fault(path, "has no value; give it one or remove the field")
		return
	}
	if text, ok := into.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!bool" {
			d.fault(path, "must be a text (is %s)", show(n))
		} else if err := text.UnmarshalText([]byte(n.Value)); err != nil {
			if _, ok := text.(*netip.Prefix); ok {
				err = fmt.Errorf("is not a network (%s); write it as 10.0.0.0/8 or 2001:db8::/32", term.QuoteValue(n.Value))
			}
			d.fault(path, "%v", err)
		}
		return
	}
	switch into.Kind() {
	case reflect.Struct:
		d.mapping(path, n, into)
	case reflect.Slice:
		d.list(path, n, into)
	default:
		d.scalar(path, n, into)
	}
}

func (d *configDecoder) mapping(path string, n *yaml.Node, into reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.fault(path, "must be a mapping (is %s); its fields stand on the lines below it, indented", show(n))
		return
	}
	fields := map[string]reflect.Value{}
	for i := range into.NumField() {
		if name := into.Type().Field(i).Tag.Get("json"); name != "" && name != "-" {
			fields[name] = into.Field(i)
		}
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := strictyaml.Resolve(n.Content[i]).Value
		at := join(path, name)
		target, known := fields[name]
		switch {
		case !known:
			d.fault(at, "%s", unknownField(name, fields))
		case seen[name]:
			d.fault(at, "is there twice; keep one")
		default:
			d.set[at] = true
			d.value(at, n.Content[i+1], target)
		}
		seen[name] = true
	}
}

func unknownField(name string, fields map[string]reflect.Value) string {
	known := slices.Sorted(maps.Keys(fields))
	if i := slices.IndexFunc(known, func(k string) bool { return strings.EqualFold(k, name) }); i >= 0 {
		return "is not a field here; names are case-sensitive, write " + known[i]
	}
	return "is not a field here; the fields are " + strings.Join(known, ", ")
}

func (d *configDecoder) list(path string, n *yaml.Node, into reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.fault(path, "must be a list (is %s); write [a, b], or each value on a line of its own after a dash", show(n))
		return
	}
	list := reflect.MakeSlice(into.Type(), len(n.Content), len(n.Content))
	for i, element := range n.Content {
		target := list.Index(i)
		if e, ok := target.Addr().Interface().(defaulter); ok {
			e.setDefaults()
		}
		d.value(fmt.Sprintf("%s[%d]", path, i), element, target)
	}
	into.Set(list)
}

func (d *configDecoder) scalar(path string, n *yaml.Node, into reflect.Value) {
	tag := ""
	if n.Kind == yaml.ScalarNode {
		tag = n.ShortTag()
	}
	switch into.Kind() {
	case reflect.String:
		if tag != "!!str" {
			d.fault(path, "must be a text (is %s); put it in quotes if it is one", show(n))
			return
		}
		into.SetString(n.Value)
	case reflect.Bool:
		var b bool
		if tag != "!!bool" || n.Decode(&b) != nil {
			d.fault(path, "must be true or false (is %s)", show(n))
			return
		}
		into.SetBool(b)
	case reflect.Int:
		var i int
		if tag != "!!int" || n.Decode(&i) != nil {
			d.fault(path, "must be a whole number (is %s)", show(n))
			return
		}
		into.SetInt(int64(i))
	case reflect.Float64:
		var f float64
		if tag != "!!int" && tag != "!!float" || n.Decode(&f) != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			d.fault(path, "must be a number (is %s)", show(n))
			return
		}
		into.SetFloat(f)
	default:
		panic("configuration has a field of type " + into.Type().String()) // every test would meet it
	}
}

func join(path, name string) string {
	for _, c := range []byte(name) {
		if c <= ' ' || c > '~' || c == '.' || c == '[' {
			name = term.QuoteValue(name)
			break
		}
	}
	if path == "" {
		return term.CutValue(name)
	}
	return path + "." + term.CutValue(name)
}

// show says for a message what a node is.
func show(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.ScalarNode:
		switch n.ShortTag() {
		case "!!str":
			return term.QuoteValue(n.Value)
		case "!!null":
			return "no value"
		case "!!bool", "!!int", "!!float", "!!timestamp":
			if names.IsVisible(n.Value) {
				return term.CutValue(n.Value)
			}
			return term.QuoteValue(n.Value) // a tag was put before a text
		}
		return "of the YAML type " + term.CutValue(strconv.QuoteToASCII(n.Tag))
	}
	return "nothing"
}
