package policy

import (
	"fmt"
	"strings"

	"github.com/pullpass/pullpass/internal/action"
	"github.com/pullpass/pullpass/internal/pattern"
	"github.com/pullpass/pullpass/internal/term"
)

// annotationItem is one item of an annotation, or of a RepositoryAccess: what a
// ServiceAccount asks for.
type annotationItem struct {
	pattern pattern.Pattern
	actions action.Set
}

// Limits of an annotation, checked before and while it is parsed: anyone who may
// edit a ServiceAccount writes it.
const (
	maxAnnotationBytes = 8 << 10
	maxAnnotationItems = 256
)

// parseAnnotation reads the items of an annotation, separated by white space:
//
//	pattern[:action,action]      the action is pull if none is given
//
// What follows the last ':' is a list of actions unless it holds a '/': then
// the ':' belongs to host:port. An item has at most one **. A fault anywhere makes the whole annotation
// count for nothing, so that nobody relies on half of it.
func parseAnnotation(text string) ([]annotationItem, error) {
	if len(text) > maxAnnotationBytes {
		return nil, fmt.Errorf("it has %d bytes; at most %d are read", len(text), maxAnnotationBytes)
	}
	count := 0
	for range strings.FieldsFuncSeq(text, isASCIISpace) {
		count++
	}
	if count > maxAnnotationItems {
		return nil, fmt.Errorf("it has %d items; at most %d are read", count, maxAnnotationItems)
	}
	items := make([]annotationItem, 0, count)
	for field := range strings.FieldsFuncSeq(text, isASCIISpace) {
		item, err := parseAnnotationItem(field)
		if err != nil {
			return nil, fmt.Errorf("item %d, %s: %w", len(items)+1, term.QuoteName(field), err)
		}
		items = append(items, item)
	}
	return items, nil
}

func parseAnnotationItem(field string) (annotationItem, error) {
	item := annotationItem{actions: action.Pull}
	text := field
	if colon := strings.LastIndexByte(field, ':'); colon >= 0 && strings.IndexByte(field[colon:], '/') < 0 {
		text, item.actions = field[:colon], 0
		for name := range strings.SplitSeq(field[colon+1:], ",") {
			set := action.Named(name)
			if set == action.Other {
				return annotationItem{}, fmt.Errorf("%s is not an action; use pull, push, delete or *", term.QuoteName(name))
			}
			item.actions |= set
		}
	}
	var err error
	if item.pattern, err = parseAskedPattern(text); err != nil {
		return annotationItem{}, err
	}
	return item, nil
}

// String returns the item as parseAnnotation reads it.
func (i annotationItem) String() string {
	return string(i.pattern) + ":" + strings.Join(i.actions.Names(), ",")
}

// isASCIISpace keeps other white space in the items, where it is a fault: what
// looks like one item to a person must not be two.
func isASCIISpace(r rune) bool {
	return r == ' ' || r == '\t' || r == '\n' || r == '\r'
}
