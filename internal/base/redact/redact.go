// Package redact keeps credentials out of logged data about requests.
//
// A client can send a token in any field: as its User-Agent, its client_id, the name of a host.
// Such fields are written to audit lines, spans, logs and events, so each passes Text before. A
// Secret cannot help here, because the field is a plain text.
package redact

import (
	"crypto/sha256"
	"fmt"
	"strings"
)

const (
	// minPiece is the shortest piece of a credential that is redacted. A shorter piece is of no
	// use: 11 characters of base64url are 66 of some thousand bits.
	minPiece = 12

	// minBlob is the shortest text in the alphabet of base64url that counts as a part of a token,
	// if it has upper case, lower case and digits. The signature of an ES256 token has 86
	// characters. A key id is a SHA-256, which has 43 in base64url, and should stay readable.
	minBlob = 64
)

// Text is that of Secrets without any secret.
func Text(s string) string { return (*Secrets)(nil).Text(s) }

// Text returns s unchanged, unless it contains a likely token or a piece of one of the secrets.
// Then it returns a fixed text with the length of s. It replaces the whole of s, because the rest
// could be the rest of the token.
func (k *Secrets) Text(s string) string {
	if !k.isIn(s) {
		return s
	}
	return fmt.Sprintf("[looks like a token, %d bytes]", len(s))
}

// Name is Text for a name that people look for: the SHA-256 of a name that is replaced follows, for
// Names. A holder may choose a tag that looks like a token, or is a piece of its token, and must not
// thereby hide which tag that was.
func (k *Secrets) Name(s string) string {
	clean := k.Text(s)
	if clean == s {
		return s
	}
	return clean + digestOf(s)
}

// Names reports whether logged is what Name returned for s.
func Names(logged, s string) bool {
	return logged == s || strings.HasSuffix(logged, digestOf(s))
}

func digestOf(s string) string { return fmt.Sprintf(", SHA-256 %x", sha256.Sum256([]byte(s))) }

// Message is Text for a message of Pullpass that repeats words of a client. It replaces likely
// tokens word by word, so that the rest stays readable.
func (k *Secrets) Message(s string) string {
	if !k.isIn(s) {
		return s
	}
	words := strings.Split(s, " ")
	for i, word := range words {
		// Check the word without the quotes around it and the text after them.
		start := strings.IndexByte(word, '"') + 1
		end := strings.LastIndexByte(word, '"')
		if end < start {
			start, end = 0, len(word)
		}
		words[i] = word[:start] + k.Text(word[start:end]) + word[end:]
	}
	// A piece may extend over several words.
	return k.Text(strings.Join(words, " "))
}

// isIn reports whether s contains a likely token or a piece of one of the secrets.
func (k *Secrets) isIn(s string) bool {
	return len(s) >= minPiece && (looksLikeToken(s) || k.holdsPiece(s))
}

// Opaque reports whether s may contain a piece of an unknown credential: minPiece characters of
// base64url in both cases. It has false positives, so it is for texts that can be dropped.
func Opaque(s string) bool { return hasBlob(s, minPiece, false) }

// pushCredential begins each push credential.
const pushCredential = "pullpass-push."

// looksLikeToken reports whether s contains a JWT, or a part of a JWT that is recognizable by its
// form. Such a part is the beginning of a header or payload, which is JSON in base64url, or a long
// text of base64url only.
func looksLikeToken(s string) bool {
	return hasBlob(s, minBlob, true) || hasJSON(s) || strings.Contains(s, pushCredential)
}

// hasBlob reports whether s contains length consecutive characters of base64url, with upper and
// lower case, and with digits if digits is set.
func hasBlob(s string, length int, digits bool) bool {
	var upper, lower, digit bool
	start := 0 // start of the current run of base64url characters
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

// jsonStart is {" in base64url, with the bits of the next byte that are the same for all of ASCII.
const jsonStart = "eyJ"

// isBase64OfText reports whether s is base64url of printable ASCII. This distinguishes the
// beginning of a token from a name such as KeyJSONParser.
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
