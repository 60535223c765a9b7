package exchange

import (
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pullpass/pullpass/internal/nodeproof"
)

// StepName names a step of Admission.
type StepName string

// The steps, in their order.
const (
	StepObjects     StepName = "objects"     // are those that the identity names still there
	StepNode        StepName = "node"        // may pods on it pull at all
	StepCaller      StepName = "caller"      // is it that node
	StepRevocations StepName = "revocations" // has an operator revoked the identity
)

// Verdict says in one word what came of a step.
type Verdict string

// The verdicts.
const (
	VerdictPassed    Verdict = "passed"
	VerdictRefused   Verdict = "refused"
	VerdictNoted     Verdict = "noted" // not passed, and mode audit refuses nobody
	VerdictOff       Verdict = "off"   // the configuration asks for nothing here
	VerdictNotJudged Verdict = "not_judged"
)

// Step is what Admission came to in one step, and what it judged by. It holds no
// text, because every request makes some: who prints a step knows the words.
type Step struct {
	Name    StepName
	Verdict Verdict

	Selector   labels.Selector  // of StepNode; nil: every node may pull
	Proof      *nodeproof.Proof // of StepCaller; nil: nobody asked
	Revocation *Revocation      // of StepRevocations; nil: none refuses
}

// Steps are those that Admission came to. Behind one that refused, or that could
// not be judged because something was down, the rest are zero.
type Steps [4]Step
