package redact

// blockBytes is the length of the blocks by which pieces are found. Any minPiece bytes of a secret
// contain one of its blocks.
const blockBytes = minPiece / 2

// sectionBytes of a secret are searched at a time, so that their blocks fit into a small table.
// ServiceAccount tokens have about 1 KiB.
const sectionBytes = 2 << 10

// maxSteps bounds the average work for each byte of a text. Random blocks need far less than one
// step.
const maxSteps = 16

// holdsPiece reports whether s and the secret have minPiece bytes in common. A client chooses both,
// so the time is proportional to their lengths. A text that needs more work counts as containing a
// piece.
func holdsPiece(s, secret string) bool {
	// Names in the registry and in Kubernetes are lower case, and credentials rarely are. So most
	// texts end here.
	if len(s) < minPiece || len(secret) < minPiece || !hasUpper(s) && hasUpper(secret) {
		return false
	}
	for start := 0; ; start += sectionBytes {
		// Sections overlap, because a piece may lie on the border of two.
		end := min(start+sectionBytes+minPiece, len(secret))
		if holdsPieceOf(s, secret[start:end]) {
			return true
		}
		if end == len(secret) {
			return false
		}
	}
}

func hasUpper(s string) bool {
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'Z' {
			return true
		}
	}
	return false
}

// blocks finds the blocks of a section by their content. It is a hash table with open addressing,
// at most a third full. An entry is the number of a block, from 1.
type blocks [1 << tableBits]uint16

const tableBits = 10

func holdsPieceOf(s, section string) bool {
	var table blocks
	budget := maxSteps * (len(s) + len(section))
	for n := 0; (n+1)*blockBytes <= len(section); n++ {
		at := hash(section[n*blockBytes:])
		for ; table[at] != 0; at = (at + 1) % len(table) {
			if budget--; budget < 0 {
				return true
			}
		}
		table[at] = uint16(n + 1)
	}
	for i := 0; i+blockBytes <= len(s); i++ {
		for at := hash(s[i:]); table[at] != 0; at = (at + 1) % len(table) {
			if budget--; budget < 0 {
				return true
			}
			if commonAround(s, i, section, int(table[at]-1)*blockBytes) {
				return true
			}
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

// hash spreads the first block of s over the table, by the upper bits of a
// product with a large odd number.
func hash(s string) int {
	_ = s[blockBytes-1]
	block := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40
	return int(block * 0x9e3779b97f4a7c15 >> (64 - tableBits))
}
