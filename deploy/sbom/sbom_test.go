package sbom

import (
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/test/testkit"
)

func TestPackageURL(t *testing.T) {
	t.Parallel()
	c := module("github.com/Azure/go-ansiterm", "v1.0.0+incompatible")
	if c.PackageURL != "pkg:golang/github.com/azure/go-ansiterm@v1.0.0%2Bincompatible" || c.Name != "github.com/Azure/go-ansiterm" {
		t.Errorf("%+v", c)
	}
}

// Several programs need a module once.
func TestPrograms(t *testing.T) {
	t.Parallel()
	program := func(deps ...*debug.Module) *debug.BuildInfo {
		return &debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Path: "example.com/m"}, Deps: deps}
	}
	a, b := &debug.Module{Path: "example.com/a", Version: "v1.0.0"}, &debug.Module{Path: "example.com/b", Version: "v2.0.0"}
	p := Product{
		Version: "v0.1.0", Created: time.Unix(1700000000, 0).UTC(),
		Programs: []*debug.BuildInfo{program(a), program(a, b)}, Files: []File{{Name: "m-linux-amd64", Content: []byte("program")}},
	}
	text := string(testkit.Value(p.JSON())(t))
	for part, want := range map[string]int{
		`"purl": "pkg:golang/example.com/a@v1.0.0"`: 1, `"purl": "pkg:golang/example.com/b@v2.0.0"`: 1, `"purl": "pkg:golang/stdlib@1.26.8"`: 1,
		`"name": "m-linux-amd64"`: 1, `"timestamp": "2023-11-14T22:13:20Z"`: 1, `"alg": "SHA-256"`: 1,
	} {
		if got := strings.Count(text, part); got != want {
			t.Errorf("%d times %s, want %d:\n%s", got, part, want, text)
		}
	}
}
