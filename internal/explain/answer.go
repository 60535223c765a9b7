package explain

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/policy"
)

// Explanation is the answer of explain. docs/explain.md and its schema say what
// each field means.
type Explanation struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Subject    Subject  `json:"subject"`
	Service    string   `json:"service"`
	Requested  []string `json:"requested,omitempty"`
	Caller     string   `json:"caller,omitempty"`
	Steps      []Step   `json:"steps"`

	// What the policy saw. An annotation that the ServiceAccount has not is nil.
	Annotations     map[string]*string `json:"annotations,omitempty"`
	NamespaceLabels map[string]string  `json:"namespaceLabels,omitzero"` // nil: not known
	policy.Trace

	Now     Outcome         `json:"now"`
	Closed  []Closed        `json:"closed,omitempty"`
	Then    json.RawMessage `json:"then,omitempty"` // the line of the audit log
	Changes []outcomeChange `json:"changes,omitempty"`

	// For people.
	then     *exchange.Event
	decision policy.Decision
}

const kind = "Explanation"

// Closed is what the gateway lets nobody do at an upstream, whatever a token allows.
type Closed struct {
	Upstream string   `json:"upstream"` // upstreams[].name
	Actions  []string `json:"actions"`  // that are granted, and not in its actions
}

// Where the subject of an explanation is from.
const (
	sourceToken     = "token"    // --token-file
	sourceName      = "name"     // --as
	sourceIdentity  = "identity" // --identity and --claims
	sourceAudit     = "audit"    // a line of the audit log, whose token was good
	sourceClaim     = "claim"    // likewise, whose token was refused
	sourceAnonymous = "anonymous"
)

// Subject is who asks. What stands in it is proven by a token, now or
// when the line was written, or else Unproven says why it is not.
type Subject struct {
	Source         string             `json:"source"`
	Proven         bool               `json:"proven"`
	Unproven       string             `json:"unproven,omitempty"`
	Cluster        string             `json:"cluster,omitempty"`
	Namespace      string             `json:"namespace,omitempty"`
	ServiceAccount *exchange.Object   `json:"serviceAccount,omitempty"`
	Pod            *exchange.Object   `json:"pod,omitempty"`
	Node           *exchange.Object   `json:"node,omitempty"`
	NodeFromAPI    bool               `json:"nodeFromAPI,omitempty"`
	PullSecret     *exchange.Object   `json:"pullSecret,omitempty"`
	CredentialID   string             `json:"credentialID,omitempty"`
	Identity       *exchange.Identity `json:"identity,omitempty"` // who is no ServiceAccount
	Claimed        *exchange.Claimed  `json:"claimed,omitempty"`
}

// Step is what came of one step of a request, in the words of explain.
type Step struct {
	Step    exchange.StepName `json:"step"`
	Verdict exchange.Verdict  `json:"verdict"`
	Message string            `json:"message"`
}

// The steps of a request beside those of Admission.
const (
	stepService exchange.StepName = "service"
	stepToken   exchange.StepName = "token"
	stepReplay  exchange.StepName = "replay"
	stepLimits  exchange.StepName = "limits"
	stepDeny    exchange.StepName = "deny"
)

// Outcome is what the request would come to. Its fields are those of an audit
// event.
type Outcome struct {
	Result     exchange.Result       `json:"result"`
	Status     int                   `json:"status"`
	Reason     string                `json:"reason,omitempty"`
	Message    string                `json:"message,omitempty"`
	Remedy     string                `json:"remedy,omitempty"` // of a refusal as a whole
	Granted    []string              `json:"granted,omitempty"`
	Rule       string                `json:"rule,omitempty"`
	Scopes     []exchange.ScopeEvent `json:"scopes,omitempty"`
	Revocation *exchange.Revocation  `json:"revocation,omitempty"`
}

func newOutcome(e *exchange.Event) Outcome {
	return Outcome{
		Result: e.Result, Status: e.Status, Reason: e.Reason, Message: e.Message, Remedy: e.Remedy(),
		Granted: e.Granted, Rule: e.Rule, Scopes: e.Scopes, Revocation: e.Revocation,
	}
}

// outcomeChange is a field of an audit event that would have another value now.
type outcomeChange struct {
	Field string `json:"field"`
	Then  string `json:"then"` // lists are separated by spaces, here and in Now
	Now   string `json:"now"`
}

func outcomeChanges(then *exchange.Event, now Outcome) []outcomeChange {
	var changes []outcomeChange
	note := func(field, then, now string) {
		if then != now {
			changes = append(changes, outcomeChange{field, then, now})
		}
	}
	note("result", string(then.Result), string(now.Result))
	note("reason", then.Reason, now.Reason)
	note("granted", strings.Join(then.Granted, " "), strings.Join(now.Granted, " "))
	note("rule", then.Rule, now.Rule)
	return changes
}

// conditions are the steps that a serving proxy judges and this answer does not.
// Limits are left out: they never say who may have what.
func (a *Explanation) conditions() []string {
	var names []string
	for _, s := range a.Steps {
		if s.Verdict == exchange.VerdictNotJudged && s.Step != stepLimits {
			names = append(names, string(s.Step))
		}
	}
	return names
}

func (a *Explanation) verdict(step exchange.StepName) exchange.Verdict {
	i := slices.IndexFunc(a.Steps, func(s Step) bool { return s.Step == step })
	return a.Steps[i].Verdict
}
