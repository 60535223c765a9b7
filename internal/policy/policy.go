package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pullpass/pullpass/internal/identity"
	"github.com/pullpass/pullpass/internal/pattern"
	"github.com/pullpass/pullpass/internal/subjects"
	"github.com/pullpass/pullpass/internal/term"
)

// Policy says who may have what. It is immutable and safe for concurrent use.
// The zero Policy grants nothing.
type Policy struct {
	rules          []rule
	deny           []denyRule
	annotationKeys []string
	revision       string
}

// rule grants what allow says to those whom subjects says.
type rule struct {
	name       []string // one element, so that a decision can share it
	origin     string   // FILE: rules[0], for people
	anonymous  bool     // applies to everybody, with a token or without
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
	actions      ActionSet
}

// denyRule refuses subjects as a whole.
type denyRule struct {
	name     string
	origin   string
	subjects []subjects.Match
}

// File is one file of a policy. Its name is for messages.
type File struct {
	Name string
	Data []byte
}

// Limits of a policy, checked before it is parsed or compiled.
const (
	MaxBytes = 1 << 20 // of each file
	maxRules = 5000    // of all files, rules and denials together
)

// Parse makes one policy of all files: their rules and denials one after
// the other. Files are YAML, strictly: a field that is not known, a duplicate
// key, a second document, an empty list or a present but empty file is a fault.
// The error joins all faults, each as FILE: PATH: what is wrong: remedy.
func Parse(files ...File) (*Policy, error) { return ParseFor(nil, files...) }

// ParseFor is Parse where the profiles of identities are known, by their names: what
// a profile says of claims that are compared is checked, too.
func ParseFor(identities map[string]identity.Profile, files ...File) (*Policy, error) {
	if len(files) == 0 {
		return nil, errors.New("no policy file is given; without a policy nobody may pull anything: name one")
	}
	parser := policyParser{identities: identities}
	hash := sha256.New()
	for _, file := range files {
		hash.Write(binary.BigEndian.AppendUint64(nil, uint64(len(file.Data)))) // where a file ends is part of what is hashed
		hash.Write(file.Data)
		parser.parse(file)
	}
	if err := parser.faults.Err(); err != nil {
		return nil, err
	}
	if len(parser.rules) == 0 {
		return nil, fmt.Errorf("%s: rules: the policy has no rule at all, so that nobody may pull anything: write one", files[0].Name)
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
		rules:          parser.rules,
		deny:           parser.deny,
		annotationKeys: sorted,
		revision:       hex.EncodeToString(hash.Sum(nil)),
	}, nil
}

// AnnotationKeys returns the keys of the annotations that rules read, sorted.
// Readers of ServiceAccounts need no others. It must not be changed.
func (p *Policy) AnnotationKeys() []string { return p.annotationKeys }

// Revision is a SHA-256 over the files of the policy, in hexadecimal: two
// replicas with the same revision decide alike.
func (p *Policy) Revision() string { return p.revision }

// Rules returns the number of rules, denials not counted.
func (p *Policy) Rules() int { return len(p.rules) }

// AndDenials returns a policy with the rules of p and the denials of both. It is
// for the time in which the rules of next cannot count yet, because annotations
// that they read are still to come: who is denied must not wait for that.
func (p *Policy) AndDenials(next *Policy) *Policy {
	both := *p
	both.deny = slices.Concat(p.deny, next.deny)
	revision := sha256.Sum256([]byte(p.revision + next.revision))
	both.revision = hex.EncodeToString(revision[:])
	return &both
}

// Unused names what can never match because no such cluster or service is
// configured. It is a warning, not a fault: one policy may serve several
// proxies. But a denial with a mistyped name denies nobody.
func (p *Policy) Unused(clusters, identities, services []string) []string {
	var unused []string
	note := func(where, field, value, configured string) {
		unused = append(unused, fmt.Sprintf("%s: %s: %s matches nothing that is configured (%s)", where, field, term.QuoteName(value), configured))
	}
	checkSubjects := func(where string, matches []subjects.Match) {
		for _, s := range matches {
			for _, glob := range s.Clusters {
				if !slices.ContainsFunc(clusters, func(name string) bool { return pattern.MatchName(glob, name) }) {
					note(where, "clusters", glob, "clusters[].name")
				}
			}
			for _, name := range s.Identities {
				if !slices.Contains(identities, name) {
					note(where, "identities", name, "identities[].name")
				}
			}
		}
	}
	for _, r := range p.rules {
		where := "rule " + r.name[0]
		checkSubjects(where, r.subjects)
		for _, service := range r.services {
			if !slices.Contains(services, service) {
				note(where, "services", service, "registries[].service")
			}
		}
	}
	for _, d := range p.deny {
		checkSubjects("deny rule "+d.name, d.subjects)
	}
	return unused
}

// WithoutLabels names what depends on the labels of namespaces in clusters
// without a connection, where they are never known. It is a warning: a policy
// may serve such clusters, too, by other rules.
func (p *Policy) WithoutLabels(clusters []string) []string {
	var affected []string
	check := func(where, effect string, matches []subjects.Match) {
		for i, s := range matches {
			for _, name := range clusters {
				if s.NamespaceSelector != nil && subjects.MatchGlobs(s.Clusters, name) {
					affected = append(affected, fmt.Sprintf("%s: subjects[%d] "+effect+
						": its namespaces' labels are not known without a connection (clusters[].kubernetes)", where, i, term.QuoteName(name)))
				}
			}
		}
	}
	for _, r := range p.rules {
		check("rule "+r.name[0], "matches nobody of cluster %s", r.subjects)
	}
	for _, d := range p.deny {
		check("deny rule "+d.name, "refuses everybody of cluster %s whom its other fields match", d.subjects)
	}
	return affected
}

// WithoutAnnotations names rules that read an annotation in clusters where none
// is ever known: there, they give nothing. It is a warning, as WithoutLabels.
func (p *Policy) WithoutAnnotations(clusters []string) []string {
	var affected []string
	for _, r := range p.rules {
		for i, s := range r.subjects {
			for _, name := range clusters {
				if r.annotation != "" && subjects.MatchGlobs(s.Clusters, name) {
					affected = append(affected, fmt.Sprintf("rule %s: subjects[%d] gets nothing in cluster %s: its ServiceAccounts' annotations are not known "+
						"without a connection or manifestFiles (clusters[].kubernetes)", r.name[0], i, term.QuoteName(name)))
				}
			}
		}
	}
	return affected
}

// WithoutRequests names rules that RepositoryAccess objects select from in clusters
// where none count: there, they give nothing. It is a warning, as WithoutLabels. Rules
// that name no cluster are meant for those where they count, unless that is none.
func (p *Policy) WithoutRequests(clusters []string, isEvery bool) []string {
	var affected []string
	for _, r := range p.rules {
		for i, s := range r.subjects {
			for _, name := range clusters {
				if r.requests && (s.Clusters != nil || isEvery) && subjects.MatchGlobs(s.Clusters, name) {
					affected = append(affected, fmt.Sprintf("rule %s: subjects[%d] gets nothing in cluster %s: no RepositoryAccess objects count there "+
						"(clusters[].kubernetes.objects.requests)", r.name[0], i, term.QuoteName(name)))
				}
			}
		}
	}
	return affected
}
