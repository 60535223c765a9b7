package config

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/pullpass/pullpass/internal/base/strictyaml"
)

// decodeConfig reads the only document of data. If that is not a configuration, it reports no
// further faults of it.
func decodeConfig(d *strictyaml.Decoder, data []byte, c *Config) (isConfig bool) {
	root, err := parseConfig(data)
	if err != nil {
		d.Fault("", "%v", err)
		return false
	}
	isConfig = true
	isKind := func(_ string, value any) bool { return value == Kind }
	for _, want := range []struct {
		path, value string
		accept      func(file string, value any) bool
	}{{"apiVersion", APIVersion, d.AcceptVersion}, {"kind", Kind, isKind}} {
		n := strictyaml.Field(root, want.path)
		switch {
		case n == nil:
			d.Fault(want.path, "is missing; write %s", want.value)
		case !want.accept(d.File, n.Value):
			isConfig = false
			d.Fault(want.path, "is %s; this file must have %s", strictyaml.Show(n), want.value)
		}
	}
	if isConfig {
		d.Decode("", root, c)
	}
	return isConfig
}

func parseConfig(data []byte) (*yaml.Node, error) {
	root, _, err := strictyaml.Parse(data, MaxBytes)
	switch {
	case errors.Is(err, strictyaml.ErrEmpty):
		return nil, errors.New("is empty; see examples/pullpass.yaml and docs/reference/configuration.md")
	case errors.Is(err, strictyaml.ErrSeveral):
		return nil, fmt.Errorf("%w; only one is read", err)
	case err != nil:
		return nil, err
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("must be a mapping (is %s); see examples/pullpass.yaml and docs/reference/configuration.md", strictyaml.Show(root))
	}
	return root, nil
}
