package strictyaml

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/term"
)

// Validator reports faults of the values of a decoded document. It ignores the parts that could not
// be decoded, because their faults were reported already.
type Validator struct {
	*Decoder
	decoded []*Fault // faults of the decoding
}

// NewValidator returns a validator for the values that a decoder has read so far. It reports to the
// decoder.
func NewValidator(d *Decoder) *Validator {
	return &Validator{Decoder: d, decoded: slices.Clone(d.List)}
}

// Fault reports a fault of the field at path, unless that field or a parent could not be decoded.
func (v *Validator) Fault(path, format string, args ...any) {
	for _, f := range v.decoded {
		if rest, below := strings.CutPrefix(path, f.Path); below && f.Path != "" && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return
		}
	}
	v.Decoder.Fault(path, format, args...)
}

// OneOf reports a value that is not allowed.
func (v *Validator) OneOf(path, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		v.Fault(path, "is unknown (%s); use %s", term.QuoteValue(value), List(allowed))
	}
}

// Unique reports each of n values that equals an earlier one. path has a verb for the index. It
// ignores empty values.
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

// List joins at least one value to a choice: "a, b or c".
func List(values []string) string {
	last := len(values) - 1
	if last == 0 {
		return values[0]
	}
	return strings.Join(values[:last], ", ") + " or " + values[last]
}
