package state

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pullpass/pullpass/internal/base/names"
)

// TargetKind is the kind of target that a revocation names.
type TargetKind string

// The kinds.
const (
	TargetToken          TargetKind = "token"          // Name is a token id (jti)
	TargetPod            TargetKind = "pod"            // Name is a pod's UID
	TargetServiceAccount TargetKind = "serviceAccount" // Cluster, Namespace and Name
	TargetNode           TargetKind = "node"           // Cluster and Name
	TargetProject        TargetKind = "project"        // Identity and Name, the id of a repository or project
	TargetRun            TargetKind = "run"            // Identity and Name, the id of a CI run
)

// Target selects the revoked tokens: all that name it. Fields that its kind does not use are empty.
// Equal targets are the same.
type Target struct {
	Kind      TargetKind `json:"kind"`
	Cluster   string     `json:"cluster,omitempty"`
	Namespace string     `json:"namespace,omitempty"`
	Identity  string     `json:"identity,omitempty"`
	Name      string     `json:"name"`
}

// Revocation refuses all tokens of a Target for a time. For a permanent refusal, use the policy's
// deny rules.
type Revocation struct {
	Target Target    `json:"target"`
	By     string    `json:"by"`     // the operator
	Reason string    `json:"reason"` // why
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"`
}

// Bounds of a revocation, so that a full list stays below some 10 MB.
const (
	maxRevocations = 10_000
	maxTargetBytes = 253 // the longest name of a Kubernetes object
	maxIDBytes     = 512 // the longest sub of a token, which is the id of some projects
	maxByBytes     = 128
	maxReasonBytes = 256
	maxRevokedFor  = 366 * 24 * time.Hour
)

var (
	// ErrRevocation rejects an incomplete or invalid revocation.
	ErrRevocation = errors.New("not a revocation")
	// ErrNotRevoked says that there is no revocation to remove.
	ErrNotRevoked = errors.New("not revoked")
	// ErrNotConfirmed says that a change may have no effect on any replica.
	ErrNotConfirmed = errors.New("not confirmed")
	// ErrNotRead says that the list of revocations has not been read yet, so revocations are
	// unknown.
	ErrNotRead = errors.New("the list of revocations has not been read yet")
)

func (t Target) validate() error {
	var cluster, namespace, identity bool // the required fields
	switch t.Kind {
	case TargetToken, TargetPod:
	case TargetServiceAccount:
		cluster, namespace = true, true
	case TargetNode:
		cluster = true
	case TargetProject, TargetRun:
		identity = true
	default:
		return fmt.Errorf("%w: unknown kind %.20q", ErrRevocation, t.Kind)
	}
	longest := maxTargetBytes
	switch {
	case identity:
		longest = maxIDBytes
	case t.Kind == TargetToken:
		longest = names.MaxTokenIDBytes
	}
	for _, field := range []struct {
		name, value string
		wanted      bool
	}{{"cluster", t.Cluster, cluster}, {"namespace", t.Namespace, namespace}, {"identity", t.Identity, identity}, {"name", t.Name, true}} {
		if !field.wanted && field.value != "" {
			return fmt.Errorf("%w: a %s has no %s", ErrRevocation, t.Kind, field.name)
		}
		if err := checkText(field.name, field.value, longest); field.wanted && err != nil {
			return err
		}
	}
	return nil
}

// Validate returns ErrRevocation for a revocation that Add would refuse at this time.
func (r Revocation) Validate(now time.Time) error {
	if err := r.Target.validate(); err != nil {
		return err
	}
	if err := checkText("by", r.By, maxByBytes); err != nil {
		return err
	}
	if err := checkText("reason", r.Reason, maxReasonBytes); err != nil {
		return err
	}
	if left := r.Until.Sub(now); left <= 0 || left > maxRevokedFor {
		return fmt.Errorf("%w: until %s is past, or more than a year away: what is to stay belongs into the policy's deny rules",
			ErrRevocation, r.Until.Format(time.RFC3339))
	}
	return nil
}

// checkText restricts text for operators to one printable line.
func checkText(field, value string, most int) error {
	if value == "" || len(value) > most || !utf8.ValidString(value) || strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("%w: %s is needed, in at most %d bytes that can be printed", ErrRevocation, field, most)
	}
	return nil
}

// record is a stored revocation or removal. A removal is kept until its revocation would have
// ended. Otherwise a replica that missed it, or a Redis that lost it, would restore the revocation.
type record struct {
	Revocation
	Removed bool `json:"removed,omitempty"`

	// changed orders the records of one target: the greatest one counts. It is Redis's time in
	// microseconds, or the previous value plus one.
	changed int64
}

// encode returns the arguments of revoke.lua: the end in milliseconds, and the record as JSON.
func (r *record) encode() (until int64, text string, err error) {
	data, err := json.Marshal(r)
	return r.Until.UnixMilli(), string(data), err
}

// decodeRecord reads CHANGED UNTIL JSON, which revoke.lua writes. It rejects a record that was
// changed after latest.
func decodeRecord(field, value string, latest time.Time) (*record, error) {
	number, rest, _ := strings.Cut(value, " ")
	_, text, _ := strings.Cut(rest, " ")
	changed, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		return nil, errors.New("begins with no number")
	}
	if changed > latest.UnixMicro() {
		return nil, errors.New("was changed in the future: compare the clock of Redis with the one here, and see who can write to Redis")
	}
	r := &record{}
	if err := json.Unmarshal([]byte(text), r); err != nil {
		return nil, errors.New("holds no record in JSON")
	}
	r.changed = changed
	if err := r.Target.validate(); err != nil {
		return nil, err
	}
	if r.Target.field() != field {
		return nil, errors.New("holds a record of another target")
	}
	return r, nil
}

// field names the target in the hash. It is injective, and short for every target.
func (t Target) field() string {
	h := sha256.New()
	parts := []string{string(t.Kind), t.Cluster, t.Namespace, t.Name}
	if t.Identity != "" {
		parts = append(parts, t.Identity) // only if set, so that fields of earlier releases stay the same
	}
	for _, part := range parts {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}
