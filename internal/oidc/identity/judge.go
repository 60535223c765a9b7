package identity

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"
)

// External returns the caller that the claims of a token identify. provider is the name of the
// identity. It fails if issuers of the profile do not write such claims: a known claim has another
// type, an id is missing, or two claims contradict each other. The error names the claim: "claim
// …".
func (p Profile) External(provider string, claims Claims) (*External, error) {
	known := p.known()
	for _, name := range slices.Sorted(maps.Keys(claims)) {
		if c, ok := p.Claim(name); ok && !c.Type.has(claims[name]) {
			return nil, fmt.Errorf("claim %q is not a %s, as it is in tokens of profile %s", name, c.Type, p)
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
	// A claim without a name does not identify a run.
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

// inPath reports whether a component of the issuer's path is this value.
func inPath(c Claims, value any) bool {
	issuer, _ := c["iss"].(string)
	for part := range strings.SplitSeq(issuer, "/") {
		if part == value {
			return true
		}
	}
	return false
}
