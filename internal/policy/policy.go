package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pullpass/pullpass/internal/oidc/identity"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/policy/subjects"
)

// Policy is the compiled rules and denials. It is immutable and safe for concurrent use. The zero
// Policy grants nothing.
type Policy struct {
	ruleSet
	annotationKeys []string
	revision       string
	deprecated     []string
}

// rule grants the actions of allow to its subjects.
type rule struct {
	name       []string // one element, so that a decision can share it
	origin     string   // FILE: rules[0]; for messages
	anonymous  bool     // applies to every caller, with a token or without
	subjects   []subjects.Match
	services   []string // exact; nil: any
	annotation string   // key; if set, allow is a ceiling and the annotation selects
	requests   bool     // allow is a ceiling, and RepositoryAccess objects select
	inObject   bool     // of a cluster
	allow      []allowance

	annotationIndex int // of the key, in Policy.annotationKeys
}

type allowance struct {
	repositories []pattern.Pattern
	catalog      bool // registry:catalog, instead of repositories
	actions      action.Set
}

// denyRule refuses subjects as a whole.
type denyRule struct {
	name     string
	origin   string
	subjects []subjects.Match
}

// File is one file of a policy. Its name is used in messages.
type File struct {
	Name string
	Data []byte
}

// Limits of a policy, checked before it is parsed or compiled.
const (
	MaxBytes = 1 << 20 // of each file
	maxRules = 10_000  // of all files, rules and denials together
)

// Parse makes one policy of all files, with their rules and denials in the order of the files.
// Files are strict YAML: an unknown field, a duplicate key, a second document, an empty list or a
// present but empty file is a fault. The error joins all faults, each as FILE: PATH: what is wrong:
// remedy.
func Parse(files ...File) (*Policy, error) { return ParseFor(nil, files...) }

// ParseFor is Parse with the profiles of identities, by their names. It also checks compared claims
// against the profiles.
func ParseFor(identities map[string]identity.Profile, files ...File) (*Policy, error) {
	if len(files) == 0 {
		return nil, errors.New("no policy file is given; without a policy no caller may pull anything: name one")
	}
	parser := policyParser{identities: identities}
	hash := sha256.New()
	for _, file := range files {
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(file.Data)))) // delimits the files in the hash
		hash.Write(file.Data)
		parser.parse(file)
	}
	if err := parser.faults.Err(); err != nil {
		return nil, err
	}
	if len(parser.rules) == 0 {
		return nil, fmt.Errorf("%s: rules: the policy has no rule at all, so no caller may pull anything: write one", files[0].Name)
	}
	keys := map[string]bool{}
	for _, r := range parser.rules {
		if r.annotation != "" {
			keys[r.annotation] = true
		}
	}
	sorted := slices.Sorted(maps.Keys(keys))
	for i := range parser.rules {
		r := &parser.rules[i]
		r.annotationIndex, _ = slices.BinarySearch(sorted, r.annotation)
	}
	return &Policy{
		ruleSet:        newRuleSet(parser.rules, parser.deny),
		annotationKeys: sorted,
		revision:       hex.EncodeToString(hash.Sum(nil)),
		deprecated:     parser.faults.Deprecated,
	}, nil
}

// AnnotationKeys returns the keys of the annotations that rules read, sorted. Readers of
// ServiceAccounts need only these. It must not be changed.
func (p *Policy) AnnotationKeys() []string { return p.annotationKeys }

// Revision is a SHA-256 over the files of the policy, in hexadecimal. Two replicas with the same
// revision make the same decisions.
func (p *Policy) Revision() string { return p.revision }

// Deprecated returns warnings about files that a later release will not read. It must not be changed.
func (p *Policy) Deprecated() []string { return p.deprecated }

// Rules returns the number of rules, denials not counted.
func (p *Policy) Rules() int { return len(p.rules) }

// AndDenials returns a policy with the rules of p and the denials of both. It is used while the
// rules of next cannot count yet, because annotations that they read have not arrived. Denials must
// take effect without that delay.
func (p *Policy) AndDenials(next *Policy) *Policy {
	both := *p
	both.setDenials(slices.Concat(p.deny, next.deny))
	revision := sha256.Sum256([]byte(p.revision + next.revision))
	both.revision = hex.EncodeToString(revision[:])
	return &both
}
