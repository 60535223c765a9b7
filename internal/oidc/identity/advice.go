package identity

// Advice names a claim that a rule for pushes should also compare, so that it does not allow more
// callers than intended.
type Advice struct {
	Claims []string // the rule should compare at least one of these
	Only   string   // the advice is for rules that compare this claim; empty: for all rules
	Risk   string   // the callers that such a rule allows otherwise
	Better string   // the condition to add, in the syntax of policies
}

// Advice returns the known risks of the profile's tokens. It considers which claims a rule
// compares. It cannot tell whether the values are right.
func (p Profile) Advice() []Advice { return p.known().advice }

// Outsiders names the outsiders who can influence jobs whose claim has this value. It is empty if
// none are known. It is for rules that let callers push.
func (p Profile) Outsiders(claim, value string) string {
	if outsiders := p.known().outsiders; outsiders != nil {
		return outsiders(claim, value)
	}
	return ""
}

// Repeats reports whether two issuers of the profile can give a claim the same value for two
// unrelated things. Each server counts from one, and on each server any user may have taken a name.
// UUIDs and values that contain a domain are unique.
func (p Profile) Repeats(claim string) bool {
	c, _ := p.Claim(claim)
	return p.known().repeats && (c.IsPath || claim == "sub" || claim == "actor_id" || claim == "user_id")
}
