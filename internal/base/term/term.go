// Package term formats untrusted texts for logs, terminals and shells. The results are short. They
// can neither control a terminal nor look like another text.
package term

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/pullpass/pullpass/internal/base/names"
)

const (
	maxValueBytes = 80  // of a value that a message repeats
	maxPlainBytes = 253 // the longest name of a Kubernetes object
)

// Cut returns at most the first n bytes of s. It does not split a character.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// Abbreviate returns s, or its first n bytes and a mark that it was cut.
func Abbreviate(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return Cut(s, n) + "..."
}

// Shorten returns s in at most n bytes, including the mark that it was cut. n must be 3 or more.
func Shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return Cut(s, n-len("...")) + "..."
}

// Quote returns at most n bytes of s in quotes. It escapes every character that could forge a line
// of a log.
func Quote(s string, n int) string { return strconv.QuoteToASCII(Abbreviate(s, n)) }

// QuoteName quotes a name, or another word, for a message. It keeps enough of it to identify it.
func QuoteName(s string) string { return Quote(s, maxValueBytes) }

// QuoteValue quotes a value of a file or a flag for a message. It does not repeat a value of
// several lines: that is most likely a key or a certificate in the place of a file name.
func QuoteValue(s string) string {
	if strings.ContainsAny(strings.TrimSpace(s), "\r\n") {
		return "a text of several lines"
	}
	return QuoteName(s)
}

// CutValue is QuoteValue without quotes.
func CutValue(s string) string { return Abbreviate(s, maxValueBytes) }

// Plain returns s unchanged if a terminal and a table can show it as one word.
func Plain(s string) string {
	if len(s) > maxPlainBytes || !names.IsVisible(s) {
		return QuoteValue(s)
	}
	return s
}

// Words joins the non-empty values. It quotes a value that is not a single word.
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

// Line returns a sentence for the end of a line. It quotes s unless s is printable ASCII.
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

// ASCIIJSON returns JSON with the same meaning and no byte above '~'. A terminal can act on U+009B
// and U+202E as on ESC, and a client can send both. JSON escapes only characters below the space.
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
