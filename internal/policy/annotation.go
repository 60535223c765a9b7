package policy

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
)

// annotationItem is one item of an annotation or of a RepositoryAccess. It names repositories and
// actions that a ServiceAccount asks for.
type annotationItem struct {
	pattern pattern.Pattern
	actions action.Set
}

// MaxAnnotationBytes is the longest annotation that counts. A longer one counts for nothing, so a
// reader keeps at most one byte more. Anyone who may edit a ServiceAccount can write its
// annotation.
const MaxAnnotationBytes = 8 << 10

const maxAnnotationItems = 256

// AnnotationBeyond replaces an annotation that is not kept, because the annotations of older
// ServiceAccounts fill the budget of the namespace.
const AnnotationBeyond = "(beyond the budget of the namespace)"

var errBeyond = errors.New("the annotations of older ServiceAccounts of the namespace take all that is kept of one namespace; use fewer or shorter ones there")

// parseAnnotation reads the items of an annotation, separated by white space:
//
//	pattern[:action,action]      the action is pull if none is given
//
// The text after the last ':' is a list of actions unless it holds a '/'. With a '/', the ':'
// belongs to host:port. An item has at most one **. One fault makes the whole annotation count for
// nothing, so that no part of a faulty annotation is relied on.
func parseAnnotation(text string) ([]annotationItem, error) {
	if len(text) > MaxAnnotationBytes {
		return nil, fmt.Errorf("it has too many bytes; at most %d are read", MaxAnnotationBytes)
	}
	if text == AnnotationBeyond {
		return nil, errBeyond
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
	if colon := strings.LastIndexByte(field, ':'); colon >= 0 && !strings.Contains(field[colon:], "/") {
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

// isASCIISpace leaves other white space in the items, where it is a fault. Text that looks like one
// item must not become two.
func isASCIISpace(r rune) bool {
	return r == ' ' || r == '\t' || r == '\n' || r == '\r'
}
