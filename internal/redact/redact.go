// Package redact keeps credentials out of what is written about a request.
//
// A client can send a token in any field: as its User-Agent, its client_id, the
// name of a host. Such fields are written down, in audit lines, spans, logs and
// events, so each passes Text before. A Secret cannot help there: the text came
// as a text.
package redact

import (
	"fmt"
	"strings"
)

const (
	// minPiece is the shortest piece of a credential that counts as one. What
	// is shorter is of no use: 11 characters of base64url are 66 of some
	// thousand bits.
	minPiece = 12

	// minBlob is the shortest text in the alphabet of base64url that counts as a
	// part of some token, if it has upper case, lower case and digits: the
	// signature of an ES256 token has 86. A key id is a SHA-256, which has 43 in
	// base64url, and is worth reading.
	minBlob = 64
)

// Text returns s as it is, or, if it holds what looks like a token, or a piece
// of one of the secrets, a fixed text that tells its length. Clients choose
// their fields: the whole is replaced, because the rest of it might be the rest
// of the token. It costs no allocation unless something is found.
func Text(s string, secrets ...string) string {
	if !holdsCredential(s, secrets) {
		return s
	}
	return fmt.Sprintf("[looks like a token, %d bytes]", len(s))
}

// Message is Text for a sentence of ours that repeats words of a client: what
// looks like a token is replaced word by word, so that the rest can be read.
func Message(s string, secrets ...string) string {
	if !holdsCredential(s, secrets) {
		return s
	}
	words := strings.Split(s, " ")
	for i, word := range words {
		// Without the quotes around it, and what follows them.
		start := strings.IndexByte(word, '"') + 1
		end := strings.LastIndexByte(word, '"')
		if end < start {
			start, end = 0, len(word)
		}
		words[i] = word[:start] + Text(word[start:end], secrets...) + word[end:]
	}
	// A piece may reach over several words.
	return Text(strings.Join(words, " "), secrets...)
}

func holdsCredential(s string, secrets []string) bool {
	if len(s) < minPiece {
		return false
	}
	if looksLikeToken(s) {
		return true
	}
	for _, secret := range secrets {
		if holdsPiece(s, secret) {
			return true
		}
	}
	return false
}

// Opaque reports whether s may hold a piece of a credential that is not known
// yet: minPiece characters of base64url in both cases. It takes other texts for
// one, and is for what nobody misses.
func Opaque(s string) bool { return hasBlob(s, minPiece, false) }

// looksLikeToken reports whether s holds a JWT, or a part of one that can be
// told without knowing it: the beginning of a header or payload, which is JSON
// in base64url, or a long text that is base64url and nothing else.
func looksLikeToken(s string) bool {
	return hasBlob(s, minBlob, true) || hasJSON(s)
}

// hasBlob reports whether s holds so many characters of base64url without
// another in between, with upper and lower case, and perhaps digits.
func hasBlob(s string, length int, digits bool) bool {
	var upper, lower, digit bool
	start := 0 // of the characters of base64url up to i
	for i := range len(s) {
		switch c := s[i]; {
		case 'A' <= c && c <= 'Z':
			upper = true
		case 'a' <= c && c <= 'z':
			lower = true
		case '0' <= c && c <= '9':
			digit = true
		case c == '-' || c == '_':
		default:
			start, upper, lower, digit = i+1, false, false, false
			continue
		}
		if i+1-start >= length && upper && lower && (digit || !digits) {
			return true
		}
	}
	return false
}

func hasJSON(s string) bool {
	for rest := s; ; {
		i := strings.Index(rest, jsonStart)
		if i < 0 || len(rest)-i < minPiece {
			return false
		}
		if isBase64OfText(rest[i : i+minPiece]) {
			return true
		}
		rest = rest[i+1:]
	}
}

// jsonStart is {" in base64url, with the bits of the byte after it that are
// always the same in ASCII.
const jsonStart = "eyJ"

// isBase64OfText reports whether s is base64url of ASCII that can be printed: it
// tells the beginning of a token from a name such as KeyJSONParser.
func isBase64OfText(s string) bool {
	var bits uint32
	for i := range len(s) {
		value := strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", s[i])
		if value < 0 {
			return false
		}
		bits = bits<<6 | uint32(value)
		if i%4 != 3 {
			continue
		}
		for shift := 16; shift >= 0; shift -= 8 {
			if c := byte(bits >> shift); c < ' ' || c > '~' {
				return false
			}
		}
		bits = 0
	}
	return true
}
