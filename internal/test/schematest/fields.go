package schematest

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// WithoutEachField calls f with the document as it is without a field, for each
// of its fields. It must have every field of the type.
func WithoutEachField[T any](t *testing.T, document []byte, f func(field string, document []byte)) {
	t.Helper()
	var whole any
	testkit.Must(t, yaml.Unmarshal(document, &whole))
	seen := map[string]bool{}
	withoutEach(whole, "", func(field string) {
		seen[field] = true
		without := testkit.Value(yaml.Marshal(whole))(t)
		f(field, without)
	})
	expectFields(t, seen, reflect.TypeFor[T](), "")
}

// withoutEach calls f while a field is missing, for each one.
func withoutEach(value any, path string, f func(path string)) {
	switch value := value.(type) {
	case []any:
		for _, element := range value {
			withoutEach(element, path, f)
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			field := value[name]
			delete(value, name)
			f(path + "." + name)
			value[name] = field
			withoutEach(field, path+"."+name, f)
		}
	}
}

func expectFields(t *testing.T, seen map[string]bool, typ reflect.Type, path string) {
	t.Helper()
	switch typ.Kind() {
	case reflect.Slice, reflect.Pointer:
		expectFields(t, seen, typ.Elem(), path)
	case reflect.Struct:
		for _, field := range reflect.VisibleFields(typ) {
			if field.Anonymous {
				continue
			}
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			at := path + "." + name
			if !seen[at] {
				t.Errorf("the document with every field has no %s", at)
			}
			expectFields(t, seen, field.Type, at)
		}
	}
}
