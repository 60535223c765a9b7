package identity

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pullpass/pullpass/internal/names"
)

// External returns whom the claims of a token identify, of the identity that has
// this name. It fails if they are not what issuers of the profile write: if a known
// claim is of another type, if an id is missing, if two claims contradict each
// other. The error names the claim: "claim …".
func (p Profile) External(provider string, claims Claims) (*External, error) {
	known := profiles[p]
	for _, name := range slices.Sorted(maps.Keys(claims)) {
		if c, ok := p.Claim(name); ok && !c.Type.has(claims[name]) {
			return nil, fmt.Errorf("claim %q is no %s, as it is in tokens of profile %s", name, c.Type, p)
		}
	}
	for _, name := range known.needs {
		value, ok := claims[name].(string)
		switch {
		case !ok && known.remedy == "":
			return nil, fmt.Errorf("claim %q is missing", name)
		case !ok:
			return nil, fmt.Errorf("claim %q is missing; %s", name, known.remedy)
		case value == "" || name != "sub" && !names.IsUID(value):
			return nil, fmt.Errorf("claim %q is not an id: 1 to %d printable characters", name, names.MaxUIDBytes)
		}
	}
	if known.check != nil {
		if fault := known.check(claims); fault != "" {
			return nil, errors.New(fault)
		}
	}
	// A claim without a name is nobody's run.
	run, hasRun := claims[known.run].(string)
	if hasRun = hasRun && known.run != ""; hasRun && !names.IsUID(run) {
		return nil, fmt.Errorf("claim %q is not an id: 1 to %d printable characters", known.run, names.MaxUIDBytes)
	}
	e := &External{Provider: provider, Profile: p, Claims: claims}
	e.Project, _ = claims[known.project].(string)
	if hasRun {
		e.Run = run
	}
	return e, nil
}

func (t Type) has(value any) bool {
	switch value.(type) {
	case string:
		return t == String
	case bool:
		return t == Boolean
	case int64, float64:
		return t == Number
	case []string:
		return t == List
	}
	return false
}
