package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// maxDepth is more than any object of Kubernetes needs, including CustomResourceDefinitions. It is
// needed because readers may be recursive.
const maxDepth = 100

// ErrEmpty is the error of a file without a document.
var ErrEmpty = errors.New("is empty")

// ErrSeveral is the error of a file with more than one document.
var ErrSeveral = errors.New("holds more than one YAML document")

// Parse returns the root of the only document, and its minimum size in bytes with its aliases
// expanded. That size may be at most limit. The caller ensures that data itself has at most limit
// bytes. The errors of invalid YAML are those of package yaml.
func Parse(data []byte, limit int) (root *yaml.Node, size int, err error) {
	documents := 0
	for range Documents(data) {
		if documents++; documents > 1 { // the YAML decoder would not read it
			return nil, 0, ErrSeveral
		}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	root, err = next(decoder)
	switch {
	case errors.Is(err, io.EOF):
		return nil, 0, ErrEmpty
	case err != nil:
		return nil, 0, err
	}
	// A second document may also follow without a marker: {a: 1}}.
	switch second, err := next(decoder); {
	case errors.Is(err, io.EOF):
	case err != nil || second.ShortTag() != "!!null":
		return nil, 0, ErrSeveral
	}
	if size, err = measured(root, limit); err != nil {
		return nil, 0, err
	}
	return root, size, nil
}

// Documents yields the YAML documents that have content. A document marker is at the start of a
// line, where it cannot be part of any value. YAML 1.1 has more line breaks than \n.
func Documents(data []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		start, content := 0, false
		for at := 0; at < len(data); {
			length := bytes.IndexFunc(data[at:], isYAMLBreak)
			if length < 0 {
				length = len(data) - at
			}
			line := data[at : at+length]
			text := line
			if bytes.HasPrefix(line, []byte("---")) || bytes.HasPrefix(line, []byte("...")) {
				if content && !yield(data[start:at]) {
					return
				}
				start, content = at, false
				text = line[3:]
				if line[0] == '.' {
					start = at + length // it ends a document and belongs to none
				}
			}
			if text = bytes.TrimLeft(text, " \t"); len(text) > 0 && text[0] != '#' {
				content = true
			}
			at += length
			if at < len(data) {
				_, size := utf8.DecodeRune(data[at:])
				at += size
			}
		}
		if content {
			yield(data[start:])
		}
	}
}

func isYAMLBreak(r rune) bool {
	return r == '\n' || r == '\r' || r == '\u0085' || r == '\u2028' || r == '\u2029'
}

// ParseAll returns the roots of all documents. With their aliases expanded, they may together have
// at most limit bytes. On an error, it also returns the documents before the fault.
func ParseAll(data []byte, limit int) ([]*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var roots []*yaml.Node
	for {
		root, err := next(decoder)
		if errors.Is(err, io.EOF) {
			return roots, nil
		}
		if err != nil {
			return roots, err
		}
		n, err := measured(root, limit)
		if err != nil {
			return roots, err
		}
		limit -= n
		roots = append(roots, root)
	}
}

func next(decoder *yaml.Decoder) (*yaml.Node, error) {
	var document yaml.Node
	if err := decoder.Decode(&document); err != nil {
		return nil, err
	}
	return document.Content[0], nil
}

// Resolve follows an alias to its target.
func Resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// Field returns the value of the field of a mapping, or nil.
func Field(mapping *yaml.Node, name string) *yaml.Node {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == name {
			return Resolve(mapping.Content[i+1])
		}
	}
	return nil
}

// measured returns the minimum size of a document in bytes with its aliases expanded. Without
// aliases, that is at most the size of its file.
func measured(root *yaml.Node, limit int) (int, error) {
	m := measure{limit: limit, known: map[*yaml.Node]extent{}}
	whole := m.node(root)
	return whole.bytes, m.err
}

// extent is the size of a part of a document.
type extent struct{ bytes, depth int }

// measure visits every node once, because an anchor is before its aliases.
type measure struct {
	limit int
	known map[*yaml.Node]extent // of nodes with an anchor; bytes is 0 during the visit
	err   error
}

func (m *measure) node(n *yaml.Node) extent {
	if n.Kind == yaml.AliasNode {
		e := m.known[n.Alias]
		if e.bytes == 0 {
			m.fail(n, "the alias *%.50s stands within what it stands for; remove it", n.Value)
		}
		return e
	}
	if n.Anchor != "" {
		m.known[n] = extent{}
	}
	e := extent{bytes: 1 + len(n.Value)}
	for _, child := range n.Content {
		if m.err != nil {
			return e
		}
		c := m.node(child)
		e = extent{e.bytes + c.bytes, max(e.depth, c.depth)}
		if e.bytes > m.limit && len(m.known) > 0 { // without anchors, it is at most as large as its file
			m.fail(child, "with its aliases written out, the document has more than %d bytes; use fewer", m.limit)
		}
	}
	if e.depth++; e.depth > maxDepth {
		m.fail(n, "is nested more than %d deep; no more is read", maxDepth)
	}
	if n.Anchor != "" {
		m.known[n] = e
	}
	return e
}

func (m *measure) fail(n *yaml.Node, format string, args ...any) {
	if m.err == nil {
		m.err = fmt.Errorf("line %d: %s", n.Line, fmt.Sprintf(format, args...))
	}
}
