package exchange

import (
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pullpass/pullpass/internal/exchange/nodeproof"
)

// StepName names a step of Admission.
type StepName string

// The steps, in their order.
const (
	StepObjects     StepName = "objects"     // do the objects that the identity names still exist
	StepNode        StepName = "node"        // may pods on the node pull at all
	StepCaller      StepName = "caller"      // is the caller that node
	StepRevocations StepName = "revocations" // has an operator revoked the identity
)

// Verdict is the result of a step in one word.
type Verdict string

// The verdicts.
const (
	VerdictPassed    Verdict = "passed"
	VerdictRefused   Verdict = "refused"
	VerdictNoted     Verdict = "noted" // not passed, but mode audit does not refuse
	VerdictOff       Verdict = "off"   // the configuration requires nothing here
	VerdictNotJudged Verdict = "not_judged"
)

// Step is the result of one step of Admission, with the facts it was based on. It holds no text,
// because every request makes some steps. Callers that print a step add the words.
type Step struct {
	Name    StepName
	Verdict Verdict

	Selector   labels.Selector  // of StepNode; nil: every node may pull
	Proof      *nodeproof.Proof // of StepCaller; nil: no proof was required
	Revocation *Revocation      // of StepRevocations; nil: none refuses
}

// Steps are the steps of Admission. After a step that refused, or that could not be judged because
// a dependency was down, the rest are zero.
type Steps [4]Step
