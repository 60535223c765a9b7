package upstream

import (
	"iter"
	"net/http"
	"slices"
	"strings"
)

// NextLink returns the address of the first link whose relation is next (RFC 8288), and whether there
// is one. The address may be any text.
func NextLink(header http.Header) (string, bool) {
	isNext := func(relation string) bool { return strings.EqualFold(relation, "next") }
	for _, line := range header.Values("Link") {
		for address, relations := range links(line) {
			if slices.ContainsFunc(strings.Fields(relations), isNext) {
				return address, true
			}
		}
	}
	return "", false
}

// links returns the address and the relations of each link in a header line, until the line cannot
// be parsed further.
func links(line string) iter.Seq2[string, string] {
	return func(yield func(address, relations string) bool) {
		for {
			rest, isLink := strings.CutPrefix(strings.TrimLeft(line, " \t,"), "<")
			address, rest, isClosed := strings.Cut(rest, ">")
			if !isLink || !isClosed {
				return
			}
			relations, rest, ok := cutRelations(rest)
			if !ok || !yield(address, relations) {
				return
			}
			line = rest
		}
	}
}

// cutRelations cuts the parameters of a link from the start of s, and returns the first rel. RFC 8288
// (section 3.3) wants later ones ignored.
func cutRelations(s string) (relations, rest string, ok bool) {
	hasRelations := false
	for {
		s = strings.TrimLeft(s, " \t")
		after, more := strings.CutPrefix(s, ";")
		if !more {
			return relations, s, s == "" || s[0] == ','
		}
		name, value := cutAtAny(strings.TrimLeft(after, " \t"), " \t=;,")
		s = strings.TrimLeft(value, " \t")
		text := ""
		if value, hasValue := strings.CutPrefix(s, "="); hasValue {
			value = strings.TrimLeft(value, " \t")
			if !strings.HasPrefix(value, `"`) {
				text, s = cutAtAny(value, ";,")
			} else if text, s, ok = parameterValue(value); !ok {
				return "", "", false
			}
		}
		if !hasRelations && strings.EqualFold(name, "rel") {
			relations, hasRelations = text, true
		}
	}
}

// cutAtAny cuts s before the first of the bytes.
func cutAtAny(s, bytes string) (before, after string) {
	end := strings.IndexAny(s, bytes)
	if end < 0 {
		end = len(s)
	}
	return s[:end], s[end:]
}
