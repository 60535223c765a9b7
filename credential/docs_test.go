package credential_test

import (
	"os"
	"strings"
	"testing"

	storagev1 "k8s.io/api/storage/v1"
	"sigs.k8s.io/yaml"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

// The code in docs/how-to/csi.md is that of the compiled examples, and Kubernetes accepts its objects.
func TestDocumentShowsTheExamples(t *testing.T) {
	t.Parallel()
	document := testkit.Read(t, "../docs/how-to/csi.md")
	examples := testkit.Value(os.ReadFile("example_test.go"))(t)
	kinds := map[string]int{}
	for i, block := range strings.Split(document, "```") {
		kind, text, _ := strings.Cut(block, "\n")
		if i%2 == 0 {
			continue
		}
		kinds[kind]++
		switch kind {
		case "go":
			if !strings.Contains(string(examples), text) {
				t.Errorf("not in example_test.go:\n%s", text)
			}
		case "yaml":
			var driver storagev1.CSIDriver
			testkit.Must(t, yaml.UnmarshalStrict([]byte(text), &driver))
			if requests := driver.Spec.TokenRequests; len(requests) != 1 || !strings.Contains(string(examples), `"`+requests[0].Audience+`"`) {
				t.Errorf("tokenRequests %v, of which the examples use none", requests)
			}
		}
	}
	if kinds["go"] != 2 || kinds["yaml"] != 1 {
		t.Errorf("blocks of each kind: %v", kinds)
	}
}
