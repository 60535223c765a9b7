package schematest

import (
	"bytes"
	"encoding"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
	"github.com/pullpass/pullpass/internal/test/testkit"
)

var update = flag.Bool("update-schema", false, "write the JSON Schemas in docs")

const (
	labelPattern = `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`
	spanPattern  = `^[+]?(0|(([0-9]+[.]?[0-9]*|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$` // as time.ParseDuration, without minus
)

// schema is a part of a JSON Schema.
type schema struct {
	Schema               string     `json:"$schema,omitempty"`
	ID                   string     `json:"$id,omitempty"`
	Title                string     `json:"title,omitempty"`
	Description          string     `json:"description,omitempty"`
	Type                 any        `json:"type,omitempty"` // one, or several
	Const                string     `json:"const,omitempty"`
	Enum                 []string   `json:"enum,omitempty"`
	Pattern              string     `json:"pattern,omitempty"`
	MinLength            int        `json:"minLength,omitempty"`
	ExclusiveMinimum     *float64   `json:"exclusiveMinimum,omitempty"`
	Minimum              *float64   `json:"minimum,omitempty"`
	Maximum              *float64   `json:"maximum,omitempty"`
	Default              any        `json:"default,omitempty"`
	MinItems             int        `json:"minItems,omitempty"`
	Items                *schema    `json:"items,omitempty"`
	MinProperties        int        `json:"minProperties,omitempty"`
	MaxProperties        int        `json:"maxProperties,omitempty"`
	Required             []string   `json:"required,omitempty"`
	OneOf                []*schema  `json:"oneOf,omitempty"` // each with what it requires
	Properties           properties `json:"properties,omitempty"`
	AdditionalProperties any        `json:"additionalProperties,omitempty"` // false, or their schema
}

// properties keep the order of the fields: editors offer them in it.
type properties []property

type property struct {
	name string
	*schema
}

func (p properties) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, property := range p {
		value, err := json.Marshal(property.schema)
		if err != nil {
			return nil, err
		}
		b.WriteByte("{,"[min(i, 1)])
		b.WriteString(strconv.Quote(property.name) + ":")
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// Describe returns the schema of the value that document points to, as Hold makes it, for a
// schema of another kind that is made from it.
func Describe(t *testing.T, document any) map[string]any {
	t.Helper()
	m := maker{t, map[string]map[string]string{}}
	text := testkit.Value(json.Marshal(m.of(reflect.ValueOf(document).Elem())))(t)
	var described map[string]any
	testkit.Must(t, json.Unmarshal(text, &described))
	return described
}

// Hold makes the schema of the value that document points to, which holds the defaults. It
// compares it with docs/NAME, which it writes first with -update-schema, and returns it
// compiled.
func Hold(t *testing.T, name, title string, document any) *jsonschema.Schema {
	t.Helper()
	m := maker{t, map[string]map[string]string{}}
	root := m.of(reflect.ValueOf(document).Elem())
	root.Schema, root.ID, root.Title = "https://json-schema.org/draft/2020-12/schema", "https://pullpass.dev/"+name, title
	root.Description = "" // it speaks of the Go type
	var want bytes.Buffer
	encoder := json.NewEncoder(&want)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	testkit.Must(t, encoder.Encode(root))
	path := testkit.InModule("docs/" + name)
	if *update {
		testkit.Must(t, os.WriteFile(path, want.Bytes(), 0o644))
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("docs/%s is stale: run make docs (%v)", name, err)
	}
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(got))
	testkit.Must(t, err)
	compiler := jsonschema.NewCompiler()
	testkit.Must(t, compiler.AddResource(root.ID, parsed))
	compiled, err := compiler.Compile(root.ID)
	testkit.Must(t, err)
	return compiled
}

type maker struct {
	t        *testing.T
	comments map[string]map[string]string // by package
}

// comment returns that of a type, or of the field of that name.
func (m maker) comment(of reflect.Type, field string) string {
	texts, known := m.comments[of.PkgPath()]
	if !known {
		_, dir, _ := strings.Cut(of.PkgPath(), "/internal/")
		texts = comments(m.t, testkit.InModule("internal/"+dir))
		m.comments[of.PkgPath()] = texts
	}
	return texts[of.Name()+field]
}

// of returns the schema of a value, which is the default.
func (m maker) of(v reflect.Value) *schema {
	m.t.Helper()
	s := &schema{}
	if v.Kind() == reflect.Interface {
		return s // anything
	}
	if values := v.MethodByName("Values"); values.IsValid() {
		s.Type = "string"
		for _, value := range values.Call(nil)[0].Seq2() {
			s.Enum = append(s.Enum, value.String())
		}
		m.setDefault(s, v)
		return s
	}
	if _, isText := v.Addr().Interface().(encoding.TextUnmarshaler); isText {
		s.Type = "string"
		if v.Kind() == reflect.Int64 {
			s.Pattern = spanPattern
		}
		m.setDefault(s, v)
		return s
	}
	switch v.Kind() {
	case reflect.Pointer:
		return m.of(withDefaults(v.Type().Elem()).Elem())
	case reflect.Struct:
		s.Type, s.AdditionalProperties = "object", false
		s.Description = m.comment(v.Type(), "")
		m.fields(s, v)
		return s
	case reflect.Slice:
		s.Type, s.Items = "array", m.of(withDefaults(v.Type().Elem()).Elem())
	case reflect.Map:
		s.Type, s.AdditionalProperties = "object", m.of(reflect.New(v.Type().Elem()).Elem())
	case reflect.String:
		s.Type = "string"
	case reflect.Bool:
		s.Type = "boolean"
	case reflect.Int:
		s.Type = "integer"
	case reflect.Float64:
		s.Type = "number"
	default:
		m.t.Fatalf("a document has a field of type %s", v.Type())
	}
	m.setDefault(s, v)
	return s
}

// withDefaults returns a pointer to a value as the decoder begins with it.
func withDefaults(of reflect.Type) reflect.Value {
	value := reflect.New(of)
	if e, ok := value.Interface().(strictyaml.Defaulter); ok {
		e.SetDefaults()
	}
	return value
}

func (m maker) setDefault(s *schema, v reflect.Value) {
	if !v.IsZero() && (v.Kind() != reflect.Slice || v.Len() > 0) {
		s.Default = v.Interface()
	}
}

func (m maker) fields(s *schema, v reflect.Value) {
	m.t.Helper()
	either := map[string]*schema{}
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case field.Anonymous:
			m.fields(s, v.Field(i))
			continue
		case name == "-":
			continue
		}
		of := m.of(v.Field(i))
		if text := m.comment(v.Type(), "."+field.Name); text != "" {
			of.Description = text
		}
		if of.Description == "" {
			m.t.Errorf("%s.%s has no comment: it is what editors show", v.Type().Name(), field.Name)
		}
		for word := range strings.FieldsSeq(field.Tag.Get("schema")) {
			if word == "required" {
				s.Required = append(s.Required, name)
				continue
			}
			if group, ok := strings.CutPrefix(word, "either="); ok {
				if either[group] == nil {
					either[group] = &schema{}
					s.OneOf = append(s.OneOf, either[group])
				}
				either[group].Required = append(either[group].Required, name)
				continue
			}
			m.constrain(of, word)
		}
		s.Properties = append(s.Properties, property{name, of})
	}
}

func (m maker) constrain(s *schema, word string) {
	m.t.Helper()
	word, value, _ := strings.Cut(word, "=")
	number := func() *float64 {
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			m.t.Error(err)
		}
		return &n
	}
	switch word {
	case "nonempty":
		switch {
		case s.Type == "string":
			s.MinLength = 1
		case s.Items != nil:
			s.MinItems = 1
			if s.Items.Type == "string" && s.Items.Enum == nil {
				s.Items.MinLength = 1
			}
		default:
			s.MinProperties = 1
		}
	case "label":
		s.Pattern = labelPattern
	case "https":
		s.Pattern = "^https://[^ #]+$"
	case "url":
		s.Pattern = "^https?://[^ #?]+$"
	case "oneof":
		s.MaxProperties = 1
	case "text":
		s.Type, s.MinLength = []string{"string", "object"}, 1
	case "const":
		s.Const = value
	case "above":
		s.ExclusiveMinimum = number()
	case "min":
		s.Minimum = number()
	case "max":
		s.Maximum = number()
	default:
		m.t.Errorf("the schema tag has the unknown word %q", word)
	}
}
