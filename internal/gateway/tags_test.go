package gateway

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// brokenOff breaks off together with its first bytes, and is at its end after the others.
type brokenOff struct{ first, others string }

func (b *brokenOff) Read(p []byte) (n int, err error) {
	switch {
	case b.first != "":
		n = copy(p, b.first)
		b.first, err = "", io.ErrUnexpectedEOF
	case b.others != "":
		n = copy(p, b.others)
		b.others = ""
	default:
		err = io.EOF
	}
	return n, err
}

func TestListThatBreaksOffAtItsEnd(t *testing.T) {
	t.Parallel()
	for _, others := range []string{"", "\n"} {
		list := newTagList(&brokenOff{`{"name":"x","tags":["a"]}`, others}, "y")
		if got, err := io.ReadAll(list); !errors.Is(err, errList) {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// The error of a body is that of its list, wherever the list is cut.
func TestListsHaveTheErrorsOfTheirBodies(t *testing.T) {
	t.Parallel()
	failed := errors.New("connection reset")
	for _, begun := range []string{"", "{", `{"name"`, `{"name":"x"`, `{"tags":`, `{"tags":[`, `{"tags":["a"`, `{"tags":["a"]`} {
		list := newTagList(io.MultiReader(strings.NewReader(begun), iotest.ErrReader(failed)), "y")
		if got, err := io.ReadAll(list); !errors.Is(err, failed) {
			t.Errorf("%q: %q, %v", begun, got, err)
		}
	}
}
