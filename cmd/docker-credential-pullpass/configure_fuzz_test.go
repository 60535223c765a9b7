package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// A Docker configuration keeps all its other members and helpers, or is refused.
func FuzzConfigure(f *testing.F) {
	for _, content := range []string{`{"auths":{},"credHelpers":{"a":"b"}}`, `{"credHelpers":null}`, `{"credHelpers":{"ghcr.io":"x"}}`, `{"credHelpers":[]}`, `null`, `{"a":1,"a":2}`} {
		f.Add([]byte(content))
	}
	name := filepath.Join(f.TempDir(), "config.json")
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		config, _, err := readConfig(name)
		if err != nil {
			return
		}
		before := maps.Clone(config)
		if addHelper(config, []string{"ghcr.io"}) != nil {
			return
		}
		var was, is map[string]string
		_ = json.Unmarshal(before["credHelpers"], &was)
		if err := json.Unmarshal(config["credHelpers"], &is); err != nil || is["ghcr.io"] != helperName {
			t.Errorf("%q becomes %s", data, config["credHelpers"])
		}
		for registry, helper := range was {
			if is[registry] != helper && registry != "ghcr.io" {
				t.Errorf("%q: the helper of %q is %q", data, registry, is[registry])
			}
		}
		delete(before, "credHelpers")
		delete(config, "credHelpers")
		if !maps.EqualFunc(before, config, func(a, b json.RawMessage) bool { return string(a) == string(b) }) {
			t.Errorf("%q becomes %s", data, config)
		}
	})
}
