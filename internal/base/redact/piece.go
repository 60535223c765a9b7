package redact

import (
	"math"
	"math/bits"
)

// Secrets are credentials whose pieces must not be in texts. They are prepared once for all texts of
// a request, because a client chooses both: a text that has to be compared costs little beside the
// preparation of a long credential. It is not safe for concurrent use. A nil *Secrets has none.
type Secrets struct{ all []secret }

// Known returns the given secrets. They are prepared when a text needs to be compared with them.
func Known(secrets ...string) *Secrets {
	known := &Secrets{make([]secret, len(secrets))}
	for i, s := range secrets {
		known.all[i] = secret{text: s, upper: hasUpper(s)}
	}
	return known
}

// secret is one of them. Its table finds its blocks by their content. It is a hash table with open
// addressing, at most a third full. An entry is the number of a block, from 1.
type secret struct {
	text   string
	upper  bool     // it has upper case
	costly bool     // it takes too much work
	table  []uint16 // nil: not prepared yet
	shift  int      // of a hash, to an index of the table
}

// blockBytes is the length of the blocks by which pieces are found. Any minPiece bytes of a secret
// contain one of its blocks.
const blockBytes = minPiece / 2

// maxSteps bounds the average work for each byte of a secret, once, and of a text, for each secret.
// Random blocks need far less than one step.
const maxSteps = 4

// holdsPiece reports whether s and a secret have minPiece bytes in common. A client chooses both,
// so the time is proportional to their lengths. A text that needs more work counts as containing a
// piece.
func (k *Secrets) holdsPiece(s string) bool {
	if k == nil || len(s) < minPiece {
		return false
	}
	upper := hasUpper(s)
	for i := range k.all {
		if k.all[i].holdsPiece(s, upper) {
			return true
		}
	}
	return false
}

func (c *secret) holdsPiece(s string, upper bool) bool {
	// Names in the registry and in Kubernetes are lower case, and credentials rarely are. So most
	// texts end here.
	if len(c.text) < minPiece || !upper && c.upper {
		return false
	}
	if c.table == nil {
		c.prepare()
	}
	if c.costly {
		return true
	}
	budget := maxSteps * len(s)
	for i := 0; i+blockBytes <= len(s); i++ {
		for at := c.at(s[i:]); c.table[at] != 0; at = (at + 1) % len(c.table) {
			if budget--; budget < 0 {
				return true
			}
			if commonAround(s, i, c.text, int(c.table[at]-1)*blockBytes) {
				return true
			}
		}
	}
	return false
}

// prepare makes the table.
func (c *secret) prepare() {
	blocks := len(c.text) / blockBytes
	size := bits.Len(uint(3 * blocks)) // the table has up to twice as many entries as are wanted
	c.table, c.shift = make([]uint16, 1<<size), 64-size
	if c.costly = blocks > math.MaxUint16; c.costly {
		return
	}
	budget := maxSteps * len(c.text)
	for n := range blocks {
		at := c.at(c.text[n*blockBytes:])
		for ; c.table[at] != 0; at = (at + 1) % len(c.table) {
			if budget--; budget < 0 {
				c.costly = true
				return
			}
		}
		c.table[at] = uint16(n + 1)
	}
}

// at spreads the first block of s over the table, by the upper bits of a product with a large odd
// number.
func (c *secret) at(s string) int {
	_ = s[blockBytes-1]
	block := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40
	return int(block * 0x9e3779b97f4a7c15 >> c.shift)
}

func hasUpper(s string) bool {
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'Z' {
			return true
		}
	}
	return false
}

// commonAround reports whether s at i and secret at j belong to a piece that both contain.
func commonAround(s string, i int, secret string, j int) bool {
	if s[i:i+blockBytes] != secret[j:j+blockBytes] {
		return false
	}
	before, after := 0, 0
	for before < minPiece && before < i && before < j && s[i-before-1] == secret[j-before-1] {
		before++
	}
	for after < minPiece && i+after < len(s) && j+after < len(secret) && s[i+after] == secret[j+after] {
		after++
	}
	return before+after >= minPiece
}
