package exchange

// StepName names a step of Authorize. It is the index of the step in Steps.
type StepName int

// The steps, in their order.
const (
	StepService     StepName = iota // is the service configured
	StepToken                       // is the credential valid
	StepObjects                     // do the objects that the identity names still exist
	StepNode                        // may pods on the node pull at all
	StepCaller                      // is the caller that node
	StepRevocations                 // has an operator revoked the identity
	StepReplay                      // is the caller the first to present the token
	StepLimits                      // has the identity sent too many requests
	StepDeny                        // does a deny rule match
	stepCount
)

func (n StepName) String() string {
	return [stepCount]string{"service", "token", "objects", "node", "caller", "revocations", "replay", "limits", "deny"}[n]
}

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

// Steps has the verdict of each step. A step that was not reached, or that could not be judged
// because a dependency was down, has none. The facts behind a verdict are in the Event.
type Steps [stepCount]Verdict
