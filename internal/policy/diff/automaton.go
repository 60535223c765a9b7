package diff

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
)

// errTooLarge is the error of a search that was given up. A difference could then be missed, so it
// is never ignored.
var errTooLarge = errors.New("too many requests to try all of them")

// maxStates bounds one search. Globs with a common prefix need about one state for each character.
const maxStates = 1 << 16

// token is one element of a pattern.
type token struct {
	kind tokenKind
	char byte
}

type tokenKind byte

const (
	literal tokenKind = iota
	star              // any characters of one component
	stars             // any components
)

// compile returns the tokens of a pattern without placeholders. Each component ends with a slash.
func compile(pattern string) []token {
	var all []token
	for component := range strings.SplitSeq(pattern, "/") {
		if component == "**" {
			all = append(all, token{kind: stars})
			continue
		}
		for _, c := range []byte(component) {
			if c == '*' {
				all = append(all, token{kind: star})
			} else {
				all = append(all, token{char: c})
			}
		}
		all = append(all, token{char: '/'})
	}
	return all
}

// grammar says which words are names. A state is a bit of a set.
type grammar struct {
	start uint32
	step  func(states uint32, c byte) uint32
	final uint32 // the states in which a name may end
}

// search looks for words that patterns match, shortest first.
type search struct {
	grammar  grammar
	patterns [][]token
	needed   []int // indexes of patterns that every word in question matches
	alphabet string
	visits   int // how often one state may be reached; more than once finds more words of the same kind
}

type node struct {
	states    uint32
	positions []int32 // of patterns, ascending: the pattern, the token, and whether it is inside a component of **
	parent    int
	char      byte
}

const (
	tokenBits = 12 // a pattern has at most 512 bytes
	inside    = 1
)

// words calls visit with each word, and a function that reports which patterns match it, until visit
// returns true.
func (s *search) words(visit func(word string, matches func(int) bool) bool) error {
	first := node{states: s.grammar.start, parent: -1}
	for i := range s.patterns {
		first.positions = s.closure(first.positions, int32(i)<<tokenBits)
	}
	first.positions = normal(first.positions)
	nodes := []node{first}
	visited := map[string]int{}
	for i := 0; i < len(nodes); i++ {
		if s.end(nodes, i, visit) {
			return nil
		}
		for _, c := range []byte(s.alphabet) {
			next := node{states: s.grammar.step(nodes[i].states, c), parent: i, char: c}
			if next.states == 0 {
				continue
			}
			next.positions = s.step(nodes[i].positions, c)
			if !s.isAlive(next.positions) {
				continue
			}
			key := next.key()
			if visited[key] >= max(s.visits, 1) {
				continue
			}
			visited[key]++
			if nodes = append(nodes, next); len(nodes) > maxStates {
				return errTooLarge
			}
		}
	}
	return nil
}

// end visits the word of a node, if it is a name.
func (s *search) end(nodes []node, i int, visit func(string, func(int) bool) bool) bool {
	n := &nodes[i]
	if n.states&s.grammar.final == 0 {
		return false
	}
	ended := s.step(n.positions, '/')
	matches := func(pattern int) bool {
		_, found := slices.BinarySearch(ended, int32(pattern)<<tokenBits|int32(len(s.patterns[pattern]))<<1)
		return found
	}
	for _, pattern := range s.needed {
		if !matches(pattern) {
			return false
		}
	}
	var word []byte
	for at := i; nodes[at].parent >= 0; at = nodes[at].parent {
		word = append(word, nodes[at].char)
	}
	slices.Reverse(word)
	return visit(string(word), matches)
}

func (s *search) isAlive(positions []int32) bool {
	for _, pattern := range s.needed {
		at, _ := slices.BinarySearch(positions, int32(pattern)<<tokenBits)
		if at == len(positions) || positions[at]>>tokenBits != int32(pattern) {
			return false
		}
	}
	return true
}

func (n *node) key() string {
	key := binary.LittleEndian.AppendUint32(nil, n.states)
	for _, p := range n.positions {
		key = binary.LittleEndian.AppendUint32(key, uint32(p))
	}
	return string(key)
}

// closure adds a position, and those that are reached without a character.
func (s *search) closure(positions []int32, p int32) []int32 {
	tokens := s.patterns[p>>tokenBits]
	for {
		positions = append(positions, p)
		at := int(p&(1<<tokenBits-1)) >> 1
		if p&inside != 0 || at == len(tokens) || tokens[at].kind == literal {
			return positions
		}
		p += 2
	}
}

func (s *search) step(positions []int32, c byte) []int32 {
	var next []int32
	for _, p := range positions {
		tokens := s.patterns[p>>tokenBits]
		at := int(p&(1<<tokenBits-1)) >> 1
		switch {
		case p&inside != 0:
			if c == '/' {
				next = s.closure(next, p&^inside)
			} else {
				next = append(next, p)
			}
		case at == len(tokens):
		case tokens[at].kind == literal:
			if tokens[at].char == c {
				next = s.closure(next, p+2)
			}
		case c == '/':
		case tokens[at].kind == star:
			next = s.closure(next, p)
		default:
			next = append(next, p|inside)
		}
	}
	return normal(next)
}

func normal(positions []int32) []int32 {
	slices.Sort(positions)
	return slices.Compact(positions)
}

// letters returns an alphabet for the search: the characters of the patterns, which come last, and one letter
// that is in none of them, for all others. A port needs a digit.
func letters(patterns []string) string {
	var used [128]bool
	for _, p := range patterns {
		for _, c := range []byte(p) {
			if c < 128 && c != '*' && c != '/' {
				used[c] = true
			}
		}
	}
	var own []byte
	if fresh := strings.IndexFunc("xyzwvutsrqponmlkjihgfedcba", func(c rune) bool { return !used[c] }); fresh >= 0 {
		own = append(own, "xyzwvutsrqponmlkjihgfedcba"[fresh])
	}
	if used[':'] && !strings.ContainsFunc("0123456789", func(c rune) bool { return used[c] }) {
		own = append(own, '5')
	}
	for c := range used {
		if used[c] {
			own = append(own, byte(c))
		}
	}
	return string(own)
}
