package explain

import (
	"encoding/json"
	"strings"

	"github.com/pullpass/pullpass/internal/exchange"
	"github.com/pullpass/pullpass/internal/policy"
	"github.com/pullpass/pullpass/internal/policy/reach"
)

// Explanation is the result of explain. docs/explain.schema.json describes each field.
type Explanation struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Subject    Subject  `json:"subject"`
	Service    string   `json:"service"`
	Requested  []string `json:"requested,omitempty"`
	Caller     string   `json:"caller,omitempty"`
	Steps      []Step   `json:"steps"`

	// The inputs of the policy. An annotation that the ServiceAccount does not have is nil.
	Annotations     map[string]*string `json:"annotations,omitempty"`
	NamespaceLabels map[string]string  `json:"namespaceLabels,omitzero"` // nil: not known
	policy.Trace

	Now     Outcome         `json:"now"`
	Closed  []reach.Closed  `json:"closed,omitempty"`
	Then    json.RawMessage `json:"then,omitempty"` // the line of the audit log
	Changes []outcomeChange `json:"changes,omitempty"`

	// For the text output.
	then     *exchange.Event
	decision policy.Decision
}

const kind = "Explanation"

// The sources of the subject of an explanation.
const (
	sourceToken     = "token"    // --token-file
	sourceName      = "name"     // --as
	sourceIdentity  = "identity" // --identity and --claims
	sourceAudit     = "audit"    // a line of the audit log whose token was accepted
	sourceClaim     = "claim"    // a line of the audit log whose token was refused
	sourceAnonymous = "anonymous"
)

// Subject is the identity of the request. A token proves its fields, now or when the line was
// written. Otherwise Unproven gives the reason.
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
	Identity       *exchange.Identity `json:"identity,omitempty"` // not a ServiceAccount
	Claimed        *exchange.Claimed  `json:"claimed,omitempty"`
}

// Step is the result of one step of a request, with explain's message.
type Step struct {
	Step    string           `json:"step"`
	Verdict exchange.Verdict `json:"verdict"`
	Message string           `json:"message"`
}

// Outcome is the result that the request would have. Its fields are those of an audit event.
type Outcome struct {
	Result     exchange.Result       `json:"result"`
	Status     int                   `json:"status"`
	Reason     string                `json:"reason,omitempty"`
	Message    string                `json:"message,omitempty"`
	Remedy     string                `json:"remedy,omitempty"` // of the refusal as a whole
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

// outcomeChange is a field of an audit event whose value would be different now.
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

// conditions returns the steps that a serving proxy checks and this explanation does not. It omits
// limits, because they do not decide access.
func (a *Explanation) conditions() []string {
	var names []string
	for i, s := range a.Steps {
		if s.Verdict == exchange.VerdictNotJudged && exchange.StepName(i) != exchange.StepLimits {
			names = append(names, s.Step)
		}
	}
	return names
}
