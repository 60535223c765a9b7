package strictyaml

import (
	"encoding"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
)

// Decoder reads parts of a YAML document into structs by their json tags. Unknown and duplicate
// fields, names in another case, null, and values of another type are faults. It reports all of
// them at once. It works on YAML nodes, because only they distinguish a duplicate field from a
// single one, and the word off from false.
type Decoder struct {
	Faults
	File string          // for messages
	Set  map[string]bool // paths of the fields that the document names
}

// Defaulter sets the defaults of an element of a list, or of the target of a pointer, before its
// fields are read.
type Defaulter interface{ SetDefaults() }

// NewDecoder returns a decoder for a document of the file.
func NewDecoder(file string) *Decoder {
	return &Decoder{File: file, Set: map[string]bool{}}
}

// Decode reads the node at path into the value that into points to.
func (d *Decoder) Decode(path string, n *yaml.Node, into any) {
	d.value(path, n, reflect.ValueOf(into).Elem())
}

// Fault reports a fault of the field at path.
func (d *Decoder) Fault(path, format string, args ...any) { d.add(d.File, path, format, args...) }

func (d *Decoder) value(path string, n *yaml.Node, into reflect.Value) {
	n = Resolve(n)
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		d.Fault(path, "has no value; give it one or remove the field")
		return
	}
	if text, ok := into.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!bool" {
			d.Fault(path, "must be a text (is %s)", Show(n))
		} else if err := text.UnmarshalText([]byte(n.Value)); err != nil {
			if _, ok := text.(*netip.Prefix); ok {
				err = fmt.Errorf("is not a network (%s); write it as 10.0.0.0/8 or 2001:db8::/32", term.QuoteValue(n.Value))
			}
			d.Fault(path, "%v", err)
		}
		return
	}
	switch into.Kind() {
	case reflect.Pointer: // nil: the document does not name it
		target := reflect.New(into.Type().Elem())
		if e, ok := target.Interface().(Defaulter); ok {
			e.SetDefaults()
		}
		d.value(path, n, target.Elem())
		into.Set(target)
	case reflect.Struct:
		d.mapping(path, n, into)
	case reflect.Slice:
		d.list(path, n, into)
	case reflect.Map:
		d.namedValues(path, n, into)
	default:
		d.scalar(path, n, into)
	}
}

func (d *Decoder) mapping(path string, n *yaml.Node, into reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.Fault(path, "must be a mapping (is %s); its fields stand on the lines below it, indented", Show(n))
		return
	}
	fields := map[string]reflect.Value{}
	for i := range into.NumField() {
		if name, _, _ := strings.Cut(into.Type().Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
			fields[name] = into.Field(i)
		}
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := Resolve(n.Content[i]).Value
		at := Join(path, name)
		target, known := fields[name]
		switch {
		case !known:
			d.Fault(at, "%s", unknownField(name, fields))
		case seen[name]:
			d.Fault(at, "is there twice; keep one")
		default:
			d.Set[at] = true
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

func (d *Decoder) list(path string, n *yaml.Node, into reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.Fault(path, "must be a list (is %s); write [a, b], or each value on a line of its own after a dash", Show(n))
		return
	}
	list := reflect.MakeSlice(into.Type(), len(n.Content), len(n.Content))
	for i, element := range n.Content {
		target := list.Index(i)
		if e, ok := target.Addr().Interface().(Defaulter); ok {
			e.SetDefaults()
		}
		d.value(fmt.Sprintf("%s[%d]", path, i), element, target)
	}
	into.Set(list)
}

// namedValues reads a mapping whose keys the document chooses.
func (d *Decoder) namedValues(path string, n *yaml.Node, into reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.Fault(path, "must be a mapping (is %s); write each name with what it has on the lines below it, indented", Show(n))
		return
	}
	values := reflect.MakeMap(into.Type())
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := Resolve(n.Content[i])
		name := reflect.ValueOf(key.Value)
		at := Join(path, key.Value)
		switch {
		case key.ShortTag() != "!!str":
			d.Fault(path, "has a name that is not text (%s); put it in quotes if it is one", Show(key))
		case values.MapIndex(name).IsValid():
			d.Fault(at, "is there twice; keep one")
		default:
			value := reflect.New(into.Type().Elem()).Elem()
			d.value(at, n.Content[i+1], value)
			values.SetMapIndex(name, value)
		}
	}
	into.Set(values)
}

func (d *Decoder) scalar(path string, n *yaml.Node, into reflect.Value) {
	tag := ""
	if n.Kind == yaml.ScalarNode {
		tag = n.ShortTag()
	}
	switch into.Kind() {
	case reflect.String:
		if tag != "!!str" {
			d.Fault(path, "must be a text (is %s); put it in quotes if it is one", Show(n))
			return
		}
		into.SetString(n.Value)
	case reflect.Bool:
		var b bool
		if tag != "!!bool" || n.Decode(&b) != nil {
			d.Fault(path, "must be true or false (is %s)", Show(n))
			return
		}
		into.SetBool(b)
	case reflect.Int:
		var i int
		if tag != "!!int" || n.Decode(&i) != nil {
			d.Fault(path, "must be a whole number (is %s)", Show(n))
			return
		}
		into.SetInt(int64(i))
	case reflect.Float64:
		var f float64
		if tag != "!!int" && tag != "!!float" || n.Decode(&f) != nil || math.IsNaN(f) || math.IsInf(f, 0) {
			d.Fault(path, "must be a number (is %s)", Show(n))
			return
		}
		into.SetFloat(f)
	default:
		panic("a document has a field of type " + into.Type().String()) // a fault of the program, which every test would find
	}
}

// Join returns the path of a field of the node at path.
func Join(path, name string) string {
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

// Show describes a node for a message.
func Show(n *yaml.Node) string {
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

// LineOf returns the line of the field at path, or of the parent of a missing field. For a
// duplicate field, it returns the line of the second.
func LineOf(root *yaml.Node, path string) int { return lineOf(root, "", path, root.Line) }

// lineOf is LineOf below n. at is the path of n, and line its own.
func lineOf(n *yaml.Node, at, path string, line int) int {
	n = Resolve(n)
	for i := len(n.Content) - 1; i >= 0; i-- {
		child, childLine := fmt.Sprintf("%s[%d]", at, i), n.Content[i].Line
		if n.Kind == yaml.MappingNode {
			if i%2 == 0 {
				continue // a name: it comes with its value
			}
			child, childLine = Join(at, n.Content[i-1].Value), n.Content[i-1].Line
		}
		if rest, below := strings.CutPrefix(path, child); below && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return lineOf(n.Content[i], child, path, childLine)
		}
	}
	return line
}
