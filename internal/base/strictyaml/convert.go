package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Convert writes CurrentVersion instead of DeprecatedVersion into the documents of these kinds, and
// into the items of lists. Every other byte remains. data may have at most limit bytes.
func Convert(data []byte, limit int, kinds ...string) ([]byte, error) {
	switch {
	case len(data) > limit:
		return nil, fmt.Errorf("has %d bytes; at most %d are read: split it into several files", len(data), limit)
	case !utf8.Valid(data):
		return nil, errors.New("is not UTF-8: save it as UTF-8")
	}
	c := converter{kinds: kinds, text: data, lines: lineStarts(data)}
	values, err := c.documents(data, limit)
	if err != nil {
		return nil, err
	}
	slices.Sort(c.found)
	var out bytes.Buffer
	at := 0
	for _, start := range slices.Compact(c.found) {
		out.Write(data[at:start])
		out.WriteString(string(CurrentVersion))
		at = start + len(DeprecatedVersion)
	}
	out.Write(data[at:])
	// Positions in a document come from the YAML library: the values say whether they were right.
	after := converter{}
	if now, err := after.documents(out.Bytes(), limit+out.Len()-len(data)); err != nil || !reflect.DeepEqual(now, values) {
		return nil, errors.New("cannot be converted: write each apiVersion on the line of its name")
	}
	return out.Bytes(), nil
}

// converter finds the versions to replace.
type converter struct {
	kinds []string
	text  []byte
	lines []int // where each line starts
	found []int // where each version starts
}

// documents returns the values of all documents, with the new versions.
func (c *converter) documents(data []byte, limit int) (values []any, err error) {
	roots, err := ParseAll(data, limit)
	if err != nil {
		return nil, fmt.Errorf("is not valid YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	read := 0
	for _, root := range roots {
		value, problems := Value(root)
		if len(problems) > 0 {
			return nil, fmt.Errorf("is not valid YAML: %s", strings.Join(problems, "; "))
		}
		if err := c.object(root, value); err != nil {
			return nil, err
		}
		values = append(values, value)
		if value != nil || root.Value != "" {
			read++
		}
	}
	if written := len(slices.Collect(Documents(data))); read < written {
		return nil, fmt.Errorf("has %d YAML documents, of which %d can be read: write --- before each", written, read)
	}
	return values, nil
}

// object converts a document, or an item of a list, in value and in found.
func (c *converter) object(n *yaml.Node, value any) error {
	fields, _ := value.(map[string]any)
	if items, ok := fields["items"].([]any); ok {
		if list := Field(n, "items"); list != nil { // nil: by a merge key
			for i, item := range items {
				if err := c.object(Resolve(list.Content[i]), item); err != nil {
					return err
				}
			}
		}
	}
	kind, _ := fields["kind"].(string)
	if fields["apiVersion"] != string(DeprecatedVersion) || !slices.Contains(c.kinds, kind) {
		return nil
	}
	fields["apiVersion"] = string(CurrentVersion)
	for i := 0; i+1 < len(n.Content); i += 2 {
		if version := n.Content[i+1]; n.Content[i].Value == "apiVersion" && version.Kind == yaml.ScalarNode && version.Anchor == "" {
			if start, ok := c.position(version); ok {
				c.found = append(c.found, start)
				return nil
			}
		}
	}
	return fmt.Errorf("line %d: apiVersion: cannot be converted: write it out, on the line of its name, without an anchor or alias", n.Line)
}

// position returns where the version of a node starts, after a quotation mark or a tag.
func (c *converter) position(n *yaml.Node) (int, bool) {
	if n.Line < 1 || n.Line > len(c.lines)-1 {
		return 0, false
	}
	start, end := c.lines[n.Line-1], c.lines[n.Line]
	for range n.Column - 1 {
		_, size := utf8.DecodeRune(c.text[start:end])
		start += size
	}
	i := bytes.Index(c.text[start:end], []byte(DeprecatedVersion))
	return start + i, i >= 0
}

// lineStarts returns where each line starts, and the end of the last one.
func lineStarts(data []byte) []int {
	starts := []int{0}
	for at := 0; at < len(data); {
		r, size := utf8.DecodeRune(data[at:])
		at += size
		if isYAMLBreak(r) && !(r == '\r' && at < len(data) && data[at] == '\n') {
			starts = append(starts, at)
		}
	}
	return append(starts, len(data))
}
