package state

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/pullpass/pullpass/internal/oidc"
)

// TestMerge shows the list of a replica after it reads records. Records are written as name, number
// of the change, and - for a removal.
func TestMerge(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		known, read, want, missing []string
		later                      time.Duration // between known and read; records last an hour
	}{
		"nothing":             {},
		"new":                 {read: []string{"a1", "b1-"}, want: []string{"a1", "b1-"}},
		"the same":            {known: []string{"a1", "b1-"}, read: []string{"a1", "b1-"}, want: []string{"a1", "b1-"}},
		"newer":               {known: []string{"a1", "b1"}, read: []string{"a2", "b2-"}, want: []string{"a2", "b2-"}},
		"added again":         {known: []string{"a1-"}, read: []string{"a2"}, want: []string{"a2"}},
		"older":               {known: []string{"a2", "b2-"}, read: []string{"a1", "b1"}, want: []string{"a2", "b2-"}, missing: []string{"a2", "b2-"}},
		"lost":                {known: []string{"a1", "b1-"}, want: []string{"a1", "b1-"}, missing: []string{"a1", "b1-"}},
		"partly lost":         {known: []string{"a1", "b1", "c1"}, read: []string{"b1", "d1"}, want: []string{"a1", "b1", "c1", "d1"}, missing: []string{"a1", "c1"}},
		"a moment before end": {known: []string{"a1"}, later: time.Hour - 1, want: []string{"a1"}, missing: []string{"a1"}},
		"ended":               {known: []string{"a1", "b1-"}, later: time.Hour},
		"ended, and read":     {known: []string{"a1"}, later: time.Hour, read: []string{"a1", "b1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := begin
			l := &revocationList{now: func() time.Time { return now }}
			parse := func(texts []string) (records []*record) {
				for _, text := range texts {
					records = append(records, &record{
						Revocation: Revocation{Target: Target{Kind: TargetPod, Name: text[:1]}, Until: begin.Add(time.Hour)},
						Removed:    len(text) > 2, changed: int64(text[1] - '0'),
					})
				}
				return records
			}
			print := func(records []*record) (texts []string) {
				for _, r := range records {
					text := fmt.Sprint(r.Target.Name, r.changed)
					if r.Removed {
						text += "-"
					}
					texts = append(texts, text)
				}
				slices.Sort(texts)
				return texts
			}
			l.merge(parse(c.known))
			now = now.Add(c.later)
			missing := l.merge(parse(c.read))
			if got := print(missing); !slices.Equal(got, c.missing) {
				t.Errorf("missing: %q, want %q", got, c.missing)
			}
			var all []*record
			for target, r := range *l.records.Load() {
				all = append(all, r)
				if r.Target != target {
					t.Errorf("%v is kept as %v", r.Target, target)
				}
				revoked, err := l.Revoked(&oidc.Identity{Kubernetes: oidc.KubernetesIdentity{Pod: oidc.ObjectRef{UID: target.Name}}})
				if err != nil || (revoked == nil) != r.Removed {
					t.Errorf("Revoked(%s): %v, %v", target.Name, revoked, err)
				}
			}
			if got := print(all); !slices.Equal(got, c.want) {
				t.Errorf("known: %q, want %q", got, c.want)
			}
		})
	}
}

// Records of earlier releases have the same fields.
func TestFieldsOfEarlierReleases(t *testing.T) {
	t.Parallel()
	if got := (Target{Kind: TargetNode, Cluster: "prod", Name: "worker-1"}).field(); got != "BMuo1jqRjTTrrOhSVbkc4MoQeicxDI5UiwE9pmN55X4" {
		t.Errorf("the field is %s", got)
	}
}

func TestFieldsAreInjective(t *testing.T) {
	t.Parallel()
	fields := map[string]Target{}
	for _, target := range []Target{
		{TargetServiceAccount, "a", "b", "", "c"}, {TargetServiceAccount, "ab", "", "", "c"}, {TargetServiceAccount, "", "ab", "", "c"},
		{TargetServiceAccount, "a", "bc", "", ""}, {TargetServiceAccount, "1:a", "b", "", "c"}, {TargetNode, "a", "b", "", "c"}, {TargetNode, "a", "", "", "bc"},
		{TargetProject, "", "", "a", "bc"}, {TargetProject, "", "", "ab", "c"}, {TargetRun, "", "", "ab", "c"}, {TargetNode, "a", "", "b", "c"},
		{TargetToken, "", "", "", "c"}, {TargetPod, "", "", "", "c"},
	} {
		if other, twice := fields[target.field()]; twice {
			t.Errorf("%v and %v have the same field", target, other)
		}
		fields[target.field()] = target
	}
}
