package strictyaml

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Value returns the value of a document: nil, bool, json.Number, string, []any and map[string]any.
// An alias has the same slice or map as its anchor, so the result must not be changed. faults are
// messages, each with its line.
//
// Unquoted words are read as kubectl reads them (YAML 1.1): no and on are booleans, not texts. Keys
// are always texts.
func Value(root *yaml.Node) (value any, faults []string) {
	v := valuer{known: map[*yaml.Node]any{}}
	value = v.value(root)
	return value, v.faults
}

type valuer struct {
	known  map[*yaml.Node]any // of nodes with an anchor
	faults []string
}

func (v *valuer) fault(n *yaml.Node, format string, args ...any) {
	if len(v.faults) < maxFaults {
		v.faults = append(v.faults, fmt.Sprintf("line %d: %s", n.Line, fmt.Sprintf(format, args...)))
	}
}

func (v *valuer) value(n *yaml.Node) (value any) {
	switch n.Kind {
	case yaml.AliasNode:
		return v.known[n.Alias]
	case yaml.MappingNode:
		value = v.mapping(n)
	case yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i, element := range n.Content {
			list[i] = v.value(element)
		}
		value = list
	case yaml.ScalarNode:
		value = v.scalar(n)
	}
	if n.Anchor != "" {
		v.known[n] = value
	}
	return value
}

func (v *valuer) mapping(n *yaml.Node) map[string]any {
	fields := make(map[string]any, len(n.Content)/2)
	set := func(at *yaml.Node, name string, value any) {
		if _, twice := fields[name]; twice {
			v.fault(at, "key %.80q already set in map", name)
			return
		}
		fields[name] = value
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := Resolve(n.Content[i]), v.value(n.Content[i+1])
		switch {
		case key.Kind != yaml.ScalarNode:
			v.fault(n.Content[i], "a key is not a text")
		case key.Tag != "!!merge":
			set(key, key.Value, value)
		default: // https://yaml.org/type/merge.html, but duplicate keys are refused
			sources, isList := value.([]any)
			if !isList {
				sources = []any{value}
			}
			for _, source := range sources {
				from, ok := source.(map[string]any)
				if !ok {
					v.fault(key, "map merge requires map or sequence of maps as the value")
				}
				for _, name := range slices.Sorted(maps.Keys(from)) {
					set(key, name, from[name])
				}
			}
		}
	}
	return fields
}

var (
	yes = []string{"y", "Y", "yes", "Yes", "YES", "on", "On", "ON", "true", "True", "TRUE"}
	no  = []string{"n", "N", "no", "No", "NO", "off", "Off", "OFF", "false", "False", "FALSE"}
)

func (v *valuer) scalar(n *yaml.Node) any {
	plain := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle|yaml.TaggedStyle) == 0
	isTrue, isFalse := slices.Contains(yes, n.Value), slices.Contains(no, n.Value)
	if plain && (isTrue || isFalse) {
		return isTrue
	}
	switch n.ShortTag() {
	case "!!null":
		return nil
	case "!!int", "!!float":
		return json.Number(n.Value)
	case "!!bool":
		if !isTrue && !isFalse {
			v.fault(n, "%.80q is not a boolean", n.Value)
		}
		return isTrue
	case "!!binary":
		var text string
		if err := n.Decode(&text); err != nil {
			v.fault(n, "is not base64 data")
		}
		return text
	}
	return n.Value
}
