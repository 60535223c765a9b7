package policyobjects

import (
	"crypto/sha256"
	"encoding/json"
	"slices"
	"time"

	"github.com/pullpass/pullpass/internal/policy"
)

// AccessPolicyStatus is the status of an AccessPolicy: what Pullpass says of its spec.
type AccessPolicyStatus struct {
	ObservedGeneration int         `json:"observedGeneration"` // metadata.generation of the spec that this is about
	Conditions         []Condition `json:"conditions"`         // Accepted: the spec counts, without a fault
}

// RepositoryAccessStatus is the status of a RepositoryAccess: what Pullpass says of its
// spec.
type RepositoryAccessStatus struct {
	ObservedGeneration int                `json:"observedGeneration"`     // metadata.generation of the spec that this is about
	Conditions         []Condition        `json:"conditions"`             // Accepted: the spec counts, without a fault; Granted: whatever it asks for is granted to all of its ServiceAccounts
	Repositories       []RepositoryStatus `json:"repositories,omitempty"` // what became of each one, in the order of the spec
}

// The types of conditions.
const (
	Accepted = "Accepted"
	Granted  = "Granted"
)

// Condition is one as Kubernetes has it.
type Condition struct {
	Type               string `json:"type" schema:"required"`               // Accepted or Granted
	Status             string `json:"status" schema:"required"`             // True, False or Unknown
	ObservedGeneration int    `json:"observedGeneration"`                   // metadata.generation of the spec that this is about
	LastTransitionTime string `json:"lastTransitionTime" schema:"required"` // when status became what it is
	Reason             string `json:"reason" schema:"required"`             // one word
	Message            string `json:"message" schema:"required"`            // for people
}

// RepositoryStatus is what became of one of spec.repositories.
type RepositoryStatus struct {
	Repository string   `json:"repository" schema:"required"` // as in the spec
	Granted    Extent   `json:"granted" schema:"required"`    // All: every action on whatever the pattern matches, to every ServiceAccount; Part, None; Unknown: its pattern does not tell
	Rules      []string `json:"rules,omitempty"`              // that grant it; those of objects are OBJECT/RULE
	Services   []string `json:"services,omitempty"`           // the registries where that is so; left out: all, or it is not granted
	Reason     string   `json:"reason,omitempty"`             // why not all of it is granted
	Remedy     string   `json:"remedy,omitempty"`             // what would help
	LastUsed   string   `json:"lastUsed,omitempty"`           // the day (UTC) on which one of the ServiceAccounts last got a token for it
}

// Extent says how much of what is asked for is granted.
type Extent string

// The extents.
const (
	All     Extent = "All"
	Part    Extent = "Part"
	None    Extent = "None"
	Unknown Extent = "Unknown"
)

// Values returns all extents.
func (Extent) Values() []Extent { return []Extent{All, Part, None, Unknown} }

// Digest covers all of a status except the times of its conditions.
type Digest [sha256.Size]byte

func (s *RepositoryAccessStatus) digest() Digest {
	timeless := *s
	timeless.Conditions = slices.Clone(s.Conditions)
	for i := range timeless.Conditions {
		timeless.Conditions[i].LastTransitionTime = ""
	}
	text, err := json.Marshal(&timeless)
	if err != nil {
		panic(err) // it holds only texts and numbers
	}
	return sha256.Sum256(text)
}

// Seen is the remembered part of an object's status. It is compact, so that 10,000 objects do not
// cost every replica as much as they cost the API server. The zero Seen is for an object without a
// status.
type Seen struct {
	digest      Digest
	transitions map[string]transition // by the type of the condition
	lastUsed    map[string]string     // by repository
}

type transition struct{ status, at string }

// see reads the status of an object, in the form of JSON decoded into an any. An invalid status is
// treated as missing, and written anew.
func see(status any) Seen {
	var s RepositoryAccessStatus
	text, err := json.Marshal(status)
	if status == nil || err != nil || json.Unmarshal(text, &s) != nil {
		return Seen{}
	}
	seen := Seen{digest: s.digest(), transitions: map[string]transition{}}
	for _, c := range s.Conditions {
		seen.transitions[c.Type] = transition{c.Status, c.LastTransitionTime}
	}
	for _, r := range s.Repositories {
		if r.LastUsed != "" {
			if seen.lastUsed == nil {
				seen.lastUsed = map[string]string{}
			}
			seen.lastUsed[r.Repository] = r.LastUsed
		}
	}
	return seen
}

// LastUsed returns the day in the status of a repository, or "".
func (s *Seen) LastUsed(repository string) string { return s.lastUsed[repository] }

// Complete sets the times of the conditions of the next status. It returns the digest of that
// status, and whether it differs from the one that was seen.
func (s *Seen) Complete(next *RepositoryAccessStatus, now time.Time) (says Digest, differs bool) {
	for i := range next.Conditions {
		c := &next.Conditions[i]
		if before := s.transitions[c.Type]; before.status == c.Status && before.at != "" {
			c.LastTransitionTime = before.at
		} else {
			c.LastTransitionTime = now.UTC().Format(time.RFC3339)
		}
	}
	says = next.digest()
	return says, says != s.digest
}

// Remembered is the data of an object that is kept for its status, in addition to the data for
// decisions.
type Remembered struct {
	Seen
	Asks policy.RequestSpec // of a RepositoryAccess, as far as it can be read
	// Allows holds the repositories of rules of an AccessPolicy, by OBJECT/RULE, as far as they can
	// be read.
	Allows map[string][]string
}

// Remember reads an object in the form of JSON decoded into an any.
func Remember(kind, name string, spec, status any) *Remembered {
	r := &Remembered{Seen: see(status)}
	if kind == policy.KindRequest {
		r.Asks = policy.RequestSpec{ServiceAccounts: texts[string](spec, "serviceAccounts"), Repositories: texts[string](spec, "repositories"), Actions: texts[policy.ActionName](spec, "actions")}
		return r
	}
	r.Allows = map[string][]string{}
	for _, rule := range list(spec, "rules") {
		fields, _ := rule.(map[string]any)
		of, _ := fields["name"].(string)
		for _, allowed := range list(rule, "allow") {
			r.Allows[name+"/"+of] = append(r.Allows[name+"/"+of], texts[string](allowed, "repositories")...)
		}
	}
	return r
}

// Forget returns the remembered part of an object that counts for nothing: the digest, which shows
// whether its status says so already.
func (r *Remembered) Forget() *Remembered { return &Remembered{Seen: Seen{digest: r.digest}} }

func list(of any, field string) []any {
	fields, _ := of.(map[string]any)
	all, _ := fields[field].([]any)
	return all
}

func texts[T ~string](of any, field string) []T {
	var all []T
	for _, value := range list(of, field) {
		if text, ok := value.(string); ok {
			all = append(all, T(text))
		}
	}
	return all
}
