package gateway

import (
	"errors"
	"io"
	"testing"
)

// brokenOff breaks off together with its last bytes, and is at its end afterwards.
type brokenOff struct{ last string }

func (b *brokenOff) Read(p []byte) (int, error) {
	if b.last == "" {
		return 0, io.EOF
	}
	n := copy(p, b.last)
	b.last = ""
	return n, io.ErrUnexpectedEOF
}

func TestListThatBreaksOffAtItsEnd(t *testing.T) {
	t.Parallel()
	list := newTagList(&brokenOff{`{"name":"x","tags":["a"]}`}, "y")
	if got, err := io.ReadAll(list); !errors.Is(err, errList) {
		t.Errorf("%q, %v", got, err)
	}
}
