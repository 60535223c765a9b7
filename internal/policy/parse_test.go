package policy

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// minimalPolicy is the smallest valid policy.
const minimalPolicy = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: a, anonymous: true, allow: [{repositories: [a], actions: [pull]}]}
`

// An empty setting must never disable a check or match every subject: each is a fault
// (jwt-registry-auth, quay and ZITADEL accepted unset values). All faults are reported at once.
func TestPolicyFaults(t *testing.T) {
	t.Parallel()
	archive := testkit.Value(txtar.ParseFile("testdata/faults.txtar"))(t)
	for pair := range slices.Chunk(archive.Files, 2) {
		t.Run(pair[0].Name, func(t *testing.T) {
			t.Parallel()
			policy, err := ParseFor(identities, File{Name: pair[0].Name, Data: pair[0].Data})
			if err == nil || policy != nil {
				t.Fatalf("parsed, error %v", err)
			}
			if want := strings.TrimSpace(string(pair[1].Data)); err.Error() != want {
				t.Errorf("got\n%v\nwant\n%s", err, want)
			}
		})
	}
}

func TestPolicyWithoutFiles(t *testing.T) {
	t.Parallel()
	if _, err := Parse(); err == nil || !strings.Contains(err.Error(), "no policy file") {
		t.Errorf("error %v", err)
	}
}

func TestFaultsOfAllFiles(t *testing.T) {
	t.Parallel()
	_, err := Parse(
		File{Name: "a.yaml", Data: []byte(minimalPolicy)},
		File{Name: "b.yaml"},
		File{Name: "c.yaml", Data: []byte(minimalPolicy)},
	)
	want := `b.yaml: is empty: write rules, or remove it from policyFiles
c.yaml: rules[0].name: "a" is taken by a.yaml: rules[0].name: names are unique over all files, rules and denials`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// The decoder reads one document and ignores the rest, so a denial behind a marker would silently
// not count. YAML 1.1 has more line breaks than \n.
func TestSecondDocumentIsNotIgnored(t *testing.T) {
	t.Parallel()
	for _, more := range []string{"---\ndeny: []", "--- \ndeny: []", "---\tdeny: []", "...\n---\ndeny: []", "...\ndeny: []"} {
		for _, lineBreak := range []string{"\n", "\r", "\r\n", "\u0085", "\u2028", "\u2029"} {
			data := minimalPolicy[:len(minimalPolicy)-1] + lineBreak + strings.ReplaceAll(more, "\n", lineBreak)
			_, err := Parse(File{Name: "p", Data: []byte(data)})
			if want := "p: has more than one YAML document: put each into a file of its own"; err == nil || err.Error() != want {
				t.Errorf("%q: error %v", data[len(minimalPolicy)-1:], err)
			}
		}
	}
	for _, one := range []string{
		"---" + minimalPolicy, "# a comment\n---\n" + minimalPolicy, "---\n# a comment" + minimalPolicy, "--- # a comment" + minimalPolicy,
		minimalPolicy + "---\n", minimalPolicy + "...\n# the end\n",
	} {
		if _, err := Parse(File{Name: "p", Data: []byte(one)}); err != nil {
			t.Errorf("%q: %v", one, err)
		}
	}
}

// Invalid text is rejected before the decoder guesses an encoding: it accepts UTF-16 by its byte
// order mark.
func TestPolicyIsUTF8(t *testing.T) {
	t.Parallel()
	_, err := Parse(File{Name: "p", Data: []byte("\xff\xfea\x00:\x00b\x00")})
	if err == nil || err.Error() != "p: is not UTF-8: save it as UTF-8" {
		t.Errorf("error %v", err)
	}
}

// Sizes are capped before anything is parsed (CVE-2025-30204).
func TestPolicySize(t *testing.T) {
	t.Parallel()
	comment := bytes.Repeat([]byte("#"), MaxBytes-len(minimalPolicy))
	if _, err := Parse(File{Name: "p", Data: append([]byte(minimalPolicy), comment...)}); err != nil {
		t.Errorf("at the limit: %v", err)
	}
	// Invalid UTF-8, to show that the content is not read.
	_, err := Parse(File{Name: "p", Data: bytes.Repeat([]byte{0xff}, MaxBytes+1)})
	if err == nil || !strings.Contains(err.Error(), "p: has 1048577 bytes; at most 1048576 are read") {
		t.Errorf("error %v", err)
	}
}

func TestRuleCount(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules:\n")
	for i := range maxRules {
		fmt.Fprintf(&text, "- {name: r%d, anonymous: true, allow: [{repositories: [a], actions: [pull]}]}\n", i)
	}
	full := File{Name: "full", Data: []byte(text.String())}
	if policy := mustParse(t, full); policy.Rules() != maxRules {
		t.Errorf("%d rules", policy.Rules())
	}
	_, err := Parse(full, File{Name: "one", Data: []byte("apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\ndeny: [{name: d, subjects: [{nodes: [a]}]}]")})
	if err == nil || err.Error() != "one: deny[0]: there are more than 10000 rules: write rules for groups, with * and placeholders" {
		t.Errorf("error %v", err)
	}
}

// A message for each of very many faults would itself be too long.
func TestFaultCount(t *testing.T) {
	t.Parallel()
	text := "apiVersion: pullpass.dev/v1beta1\nkind: AccessPolicy\nrules:\n" + strings.Repeat("- 1\n", 1000)
	_, err := Parse(File{Name: "p", Data: []byte(text)})
	if err == nil {
		t.Fatal("parsed")
	}
	lines := strings.Split(err.Error(), "\n")
	if last := lines[len(lines)-1]; len(lines) != 100+1 || last != "and 900 more faults" {
		t.Errorf("%d lines, the last is %q", len(lines), last)
	}
}

// A few lines of YAML can stand for billions of values.
func TestAliasBomb(t *testing.T) {
	t.Parallel()
	text := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := range 9 {
		text += fmt.Sprintf("a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 10), ","))
	}
	_, err := Parse(File{Name: "p", Data: []byte(text)})
	if err == nil || err.Error() != "p: is not valid YAML: line 6: with its aliases written out, the document has more than 1048576 bytes; use fewer" {
		t.Errorf("error %v", err)
	}
}

func TestPolicyAccessors(t *testing.T) {
	t.Parallel()
	const text = `
apiVersion: pullpass.dev/v1beta1
kind: AccessPolicy
rules:
- {name: c, subjects: [{namespaces: [a]}], annotation: repositories, allow: [{repositories: [a], actions: [pull]}]}
- {name: b, subjects: [{namespaces: [a]}], annotation: b.example.com/x, allow: [{repositories: [a], actions: [pull]}]}
- {name: a, anonymous: false, subjects: [{namespaces: [a]}], annotation: repositories, allow: [{repositories: [a], actions: [pull]}]}
deny:
- {name: d, subjects: [{namespaces: [b]}]}
`
	policy := parseText(t, text)
	if keys := policy.AnnotationKeys(); !slices.Equal(keys, []string{"b.example.com/x", "repositories"}) {
		t.Errorf("keys %q", keys)
	}
	if keys := parseText(t, minimalPolicy).AnnotationKeys(); len(keys) != 0 {
		t.Errorf("keys %q of a policy without annotations", keys)
	}
	if policy.Rules() != 3 {
		t.Errorf("%d rules", policy.Rules())
	}
	if policy.Revision() != parseText(t, text).Revision() || len(policy.Revision()) != 64 {
		t.Errorf("revision %q is not one of the contents", policy.Revision())
	}
}

// Different policies must have different revisions, even if only the border between two files
// differs (composite keys that collide).
func TestRevisionIsInjective(t *testing.T) {
	t.Parallel()
	file := func(rule, tail string) File {
		return File{Data: []byte(strings.Replace(minimalPolicy, "name: a", "name: "+rule, 1) + tail)}
	}
	// The comment moves from one file's end to the other's start.
	b := file("b", "")
	withComment := File{Data: append([]byte("#x"), b.Data...)}
	one := mustParse(t, file("a", "#x"), b)
	two := mustParse(t, file("a", ""), withComment)
	if one.Revision() == two.Revision() {
		t.Error("two policies have the same revision")
	}
}
