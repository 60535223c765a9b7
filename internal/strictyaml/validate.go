package strictyaml

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/term"
)

// Validator finds what is wrong with the values of a document that was decoded,
// also when parts of it could not be. About those parts it says nothing more.
type Validator struct {
	*Decoder
	decoded []*Fault // that decoding found
}

// NewValidator returns a validator of what a decoder has read so far. It reports
// where the decoder does.
func NewValidator(d *Decoder) *Validator {
	return &Validator{Decoder: d, decoded: slices.Clone(d.Faults)}
}

// Fault reports what is wrong with the field at path, unless that, or what it is
// a part of, could not be decoded.
func (v *Validator) Fault(path, format string, args ...any) {
	for _, f := range v.decoded {
		if rest, below := strings.CutPrefix(path, f.Path); below && f.Path != "" && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return
		}
	}
	v.Decoder.Fault(path, format, args...)
}

// OneOf reports a value that is none of those that are allowed.
func (v *Validator) OneOf(path, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		v.Fault(path, "is unknown (%s); use %s", term.QuoteValue(value), List(allowed))
	}
}

// Unique reports each of n values that an earlier one equals. path has a verb for
// the index. Empty values are left to others.
func (v *Validator) Unique(n int, path string, value func(int) string) {
	first := map[string]int{}
	for i := range n {
		s := value(i)
		if s == "" {
			continue
		}
		if j, twice := first[s]; twice {
			v.Fault(fmt.Sprintf(path, i), "is the same as %s (%s); each must differ", fmt.Sprintf(path, j), term.QuoteValue(s))
			continue
		}
		first[s] = i
	}
}

// List writes at least one value as people read a choice: "a, b or c".
func List(values []string) string {
	last := len(values) - 1
	if last == 0 {
		return values[0]
	}
	return strings.Join(values[:last], ", ") + " or " + values[last]
}
