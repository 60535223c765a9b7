package registryauth

import (
	"bytes"
	"crypto/sha256"
	"encoding/gob"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"text/template"

	"sigs.k8s.io/yaml"
)

const secretValue = "do-not-print-this"

// secretHidden holds a Secret where fmt reaches it by reflection only.
type secretHidden struct {
	name   string
	secret Secret
	nested struct{ secrets []Secret }
}

// secretShapes are the ways in which a Secret ends up in an argument, by name.
func secretShapes() map[string]any {
	s := NewSecret(secretValue)
	hidden := secretHidden{name: "n", secret: s}
	hidden.nested.secrets = []Secret{s}
	return map[string]any{
		"value":             s,
		"pointer":           &s,
		"exported field":    Request{Service: "s", Credential: s},
		"pointer to struct": &Request{Credential: s},
		"token":             Token{ID: "1", Value: s},
		"unexported field":  hidden,
		"pointer to hidden": &hidden,
		"slice":             []Secret{s},
		"array":             [1]Secret{s},
		"map":               map[string]Secret{"k": s},
		"map of hidden":     map[string]*secretHidden{"k": &hidden},
		"interface":         []any{s, hidden},
		"error":             fmt.Errorf("with %v: %w", s, &RequestError{Message: fmt.Sprint(s)}),
	}
}

// A bearer token in a log line is a credential for every reader of the logs.
func TestSecretIsNotPrinted(t *testing.T) {
	t.Parallel()
	formats := []string{
		"%v", "%+v", "%#v", "%s", "%+s", "%q", "%#q", "%x", "%X", "% x", "%d", "%c", "%U", "%b", "%o", "%e", "%g", "%t",
		"%p", "%w", "%y", "%T", "%20v", "%-20.3s", "%*d", "no verb", "%[2]v", "%!",
	}
	for name, value := range secretShapes() {
		for _, format := range formats {
			secretAbsent(t, fmt.Sprintf("%s with %s", name, format), fmt.Sprintf(format, value))
		}
		secretAbsent(t, name+" with Sprint", fmt.Sprint(value))
		secretAbsent(t, name+" with Sprintln", fmt.Sprintln("a", value))
		secretAbsent(t, name+" with Errorf", fmt.Errorf("failed: %v", value).Error())
	}
}

func TestSecretIsNotLogged(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	options := &slog.HandlerOptions{Level: slog.LevelDebug}
	for _, handler := range []slog.Handler{slog.NewTextHandler(&out, options), slog.NewJSONHandler(&out, options)} {
		logger := slog.New(handler)
		for name, value := range secretShapes() {
			out.Reset()
			logger.Info("m", "v", value)
			logger.With("v", value).WithGroup("g").Warn(fmt.Sprint(value), slog.Group("h", "v", value))
			secretAbsent(t, fmt.Sprintf("%s with %T", name, handler), out.String())
		}
	}
}

func TestSecretIsNotEncoded(t *testing.T) {
	t.Parallel()
	for name, value := range secretShapes() {
		encoded, _ := json.Marshal(value)
		secretAbsent(t, name+" with json", string(encoded))
		encoded, _ = yaml.Marshal(value)
		secretAbsent(t, name+" with yaml", string(encoded))
		encoded, _ = xml.Marshal(value)
		secretAbsent(t, name+" with xml", string(encoded))
		var out bytes.Buffer
		_ = gob.NewEncoder(&out).Encode(value)
		secretAbsent(t, name+" with gob", out.String())
		out.Reset()
		if err := template.Must(template.New("").Parse("{{.}} {{printf `%+v` .}}")).Execute(&out, value); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		secretAbsent(t, name+" with template", out.String())
	}
}

func TestSecretIsRedactedWhereItCanBe(t *testing.T) {
	t.Parallel()
	req := Request{Service: "registry", Credential: NewSecret(secretValue)}
	if got := fmt.Sprintf("%+v", req); !strings.Contains(got, "Credential:[redacted]") || !strings.Contains(got, "Service:registry") {
		t.Errorf("%%+v = %s", got)
	}
	encoded, err := json.Marshal(map[string]any{"c": req.Credential})
	if err != nil || string(encoded) != `{"c":"[redacted]"}` {
		t.Errorf("json = %s, %v", encoded, err)
	}
}

// The runtime prints a panic's value by itself, as does a handler that recovers
// it: with String or Error if there is one.
func TestSecretIsNotPrintedByPanic(t *testing.T) {
	t.Parallel()
	for name, value := range secretShapes() {
		func() {
			defer func() {
				recovered := recover()
				secretAbsent(t, name+" as a panic", fmt.Sprintf("%v %+v %#v", recovered, recovered, recovered))
				if s, ok := recovered.(fmt.Stringer); ok {
					secretAbsent(t, name+" as a Stringer", s.String())
				}
			}()
			panic(value)
		}()
	}
}

func TestSecretReveals(t *testing.T) {
	t.Parallel()
	s := NewSecret(secretValue)
	if s.Reveal() != secretValue || s.IsZero() {
		t.Errorf("Reveal = %q, IsZero = %v", s.Reveal(), s.IsZero())
	}
	if s.Hash() != sha256.Sum256([]byte(secretValue)) {
		t.Errorf("Hash = %x", s.Hash())
	}
	for name, zero := range map[string]Secret{"zero": {}, "empty": NewSecret("")} {
		if zero.Reveal() != "" || !zero.IsZero() || zero.Hash() != [sha256.Size]byte{} {
			t.Errorf("%s: Reveal = %q, IsZero = %v, Hash = %x", name, zero.Reveal(), zero.IsZero(), zero.Hash())
		}
	}
}

func secretAbsent(t *testing.T, how, out string) {
	t.Helper()
	hash := sha256.Sum256([]byte(secretValue)) // of a weak password, it tells the password
	for _, form := range []string{
		secretValue, fmt.Sprintf("%x", secretValue), fmt.Sprintf("%X", secretValue), fmt.Sprintf("% x", secretValue), fmt.Sprint([]byte(secretValue)),
		fmt.Sprintf("%x", hash), fmt.Sprint(hash),
	} {
		if strings.Contains(out, form) {
			t.Errorf("%s printed the secret: %s", how, out)
		}
	}
}
