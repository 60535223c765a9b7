package strictyaml

import (
	"fmt"
	"reflect"
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

// Values reports each text in value whose type has a method Values that does not return it.
func (v *Validator) Values(path string, value reflect.Value) {
	if method := value.MethodByName("Values"); method.IsValid() {
		var allowed []string
		for _, a := range method.Call(nil)[0].Seq2() {
			allowed = append(allowed, a.String())
		}
		if !slices.Contains(allowed, value.String()) {
			v.Fault(path, "is unknown (%s); use %s", term.QuoteValue(value.String()), List(allowed))
		}
		return
	}
	switch value.Kind() {
	case reflect.Pointer:
		if !value.IsNil() {
			v.Values(path, value.Elem())
		}
	case reflect.Struct:
		for field, of := range value.Fields() {
			if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" && name != "-" {
				v.Values(Join(path, name), of)
			}
		}
	case reflect.Slice:
		for i := range value.Len() {
			v.Values(fmt.Sprintf("%s[%d]", path, i), value.Index(i))
		}
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
