package console

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/describe"
	"github.com/pullpass/pullpass/internal/policy/reach"
)

// shadows remembers the shadowed rules of one policy: finding them takes seconds with thousands of
// rules.
type shadows struct {
	mu       sync.Mutex
	revision string
	found    []string
}

func (s *shadows) of(p *policy.Policy) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.revision != p.Revision() {
		s.revision, s.found = p.Revision(), reach.Shadowed(p)
	}
	return s.found
}

// policyRow is a rule or a denial, with its use as far as decisions are remembered.
type policyRow struct {
	describe.Sentence
	Uses     int
	LastUsed string // empty: not remembered
}

type policyPage struct {
	Rules, Deny  []policyRow
	Shadowed     []string
	Gained, Lost int // requests that the trial would have decided differently
	Since        string
}

func (h *Handler) policy(w http.ResponseWriter, r *http.Request) {
	p := page{Name: "policy", Title: "Policy"}
	var shown policyPage
	p.Problem = h.ask(r, func(context.Context) error {
		known := h.Known()
		h.Log.fetch(r.Context())
		uses := shown.count(h.Log.newest(&query{}))
		said := known.Describe()
		shown.Rules, shown.Deny = uses.rows(said.Rules), uses.rows(said.Deny)
		shown.Shadowed = h.shadows.of(known.Policy)
		return nil
	})
	p.Data = &shown
	h.write(w, p)
}

// used is the use of rules, by cluster and name; rules of files have no cluster.
type used map[[2]string]*policyRow

// count reads the decisions, the newest first.
func (p *policyPage) count(events []*exchange.Event) used {
	uses := used{}
	for _, e := range events {
		p.Since = e.Time.UTC().Format(time.DateTime)
		gained, lost := e.TrialChange()
		p.Gained += map[bool]int{true: 1}[gained]
		p.Lost += map[bool]int{true: 1}[lost]
		for name := range strings.SplitSeq(e.Rule, ",") {
			cluster := ""
			if strings.Contains(name, "/") { // OBJECT/RULE
				cluster = e.Cluster
			}
			u := uses[[2]string{cluster, name}]
			if u == nil {
				u = &policyRow{LastUsed: e.Time.UTC().Format(time.DateTime)}
				uses[[2]string{cluster, name}] = u
			}
			u.Uses++
		}
	}
	return uses
}

// rows returns the sentences with their use, the most used first.
func (u used) rows(sentences []describe.Sentence) []policyRow {
	rows := make([]policyRow, len(sentences))
	for i, s := range sentences {
		if found := u[[2]string{s.Cluster, s.Name}]; found != nil {
			rows[i] = *found
		}
		rows[i].Sentence = s
	}
	slices.SortStableFunc(rows, func(a, b policyRow) int { return cmp.Compare(b.Uses, a.Uses) })
	return rows
}
