// Package term writes texts that others chose, for logs, terminals and shells:
// short, and so that they can neither steer a terminal nor pass for something
// else.
package term

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/pullpass/pullpass/internal/names"
)

const (
	maxValueBytes = 80  // of a value that a message repeats
	maxPlainBytes = 253 // the longest name of a Kubernetes object
)

// Cut returns at most the first n bytes of s, up to the end of a character.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// Abbreviate returns s, or its first n bytes and a mark that there was more.
func Abbreviate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return Cut(s, n) + "..."
}

// Shorten returns s in at most n bytes: the mark that there was more is one of
// them. It takes n of 3 or more.
func Shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return Cut(s, n-len("...")) + "..."
}

// Quote returns at most n bytes of s in quotes, with everything escaped that
// could forge a line of a log.
func Quote(s string, n int) string { return strconv.QuoteToASCII(Abbreviate(s, n)) }

// QuoteName quotes a name, or another word, for a message: as much of it as tells
// which one is meant.
func QuoteName(s string) string { return Quote(s, maxValueBytes) }

// QuoteValue quotes a value of a file or a flag for a message. What has several
// lines is most likely a key or a certificate that was put where its file's name
// belongs, and is not repeated.
func QuoteValue(s string) string {
	if strings.ContainsAny(strings.TrimSpace(s), "\r\n") {
		return "a text of several lines"
	}
	return QuoteName(s)
}

// CutValue is QuoteValue for what needs no quotes.
func CutValue(s string) string { return Abbreviate(s, maxValueBytes) }

// Plain returns s as it is if a terminal and a table can show it as one word.
func Plain(s string) string {
	if len(s) > maxPlainBytes || !names.IsVisible(s) {
		return QuoteValue(s)
	}
	return s
}

// Words joins values that are not empty. One that is not a single word is quoted.
func Words(values ...string) string {
	var all []string
	for _, v := range values {
		if v == "" {
			continue
		}
		if !names.IsVisible(v) || strings.Contains(v, `"`) {
			v = strconv.QuoteToASCII(v)
		}
		all = append(all, v)
	}
	return strings.Join(all, " ")
}

// Line returns a sentence that stands last in its line, quoted if it is more
// than printable ASCII.
func Line(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
		return strconv.QuoteToASCII(s)
	}
	return s
}

// ShellWord returns s as one word of a POSIX shell.
func ShellWord(s string) string {
	plain := !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._/:@%+,=-", r)
	})
	if plain && s != "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// ASCIIJSON returns JSON that means the same and has no byte above '~'. A
// terminal obeys U+009B and believes U+202E as it does ESC, and both may stand
// in what a client sends; JSON escapes only what lies below the space.
func ASCIIJSON(line []byte) []byte {
	isPlain := true
	for _, b := range line {
		isPlain = isPlain && b <= '~'
	}
	if isPlain {
		return line
	}
	escaped := make([]byte, 0, 2*len(line))
	for len(line) > 0 {
		r, size := utf8.DecodeRune(line)
		switch {
		case r <= '~':
			escaped = append(escaped, byte(r))
		case r <= 0xffff:
			escaped = fmt.Appendf(escaped, `\u%04x`, r)
		default:
			high, low := utf16.EncodeRune(r)
			escaped = fmt.Appendf(escaped, `\u%04x\u%04x`, high, low)
		}
		line = line[size:]
	}
	return escaped
}
