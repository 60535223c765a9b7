package policy

import (
	"strings"

	"github.com/pullpass/pullpass/internal/base/names"
	"github.com/pullpass/pullpass/internal/base/term"
	"github.com/pullpass/pullpass/internal/policy/action"
	"github.com/pullpass/pullpass/internal/policy/pattern"
	"github.com/pullpass/pullpass/internal/registryauth"
)

// maxRemedyBytes leaves room for a reason beside the remedy: an event on a pod has 1024 bytes.
const maxRemedyBytes = 500

const Administrator = "an administrator of Pullpass"

// remedy returns the change that would grant the missing actions. Changes that the ServiceAccount's
// owner can make alone come first.
func (e *evaluation) remedy(q question, missing action.Set, nearest []candidate) string {
	if q.kind == unknownResource {
		return "ask for repositories or for registry:catalog"
	}
	if e.subject.Identity == nil {
		return "send a credential, a ServiceAccount's token: without one, only anonymous rules count"
	}
	for _, c := range nearest {
		switch c.near {
		case nearFault:
			return term.Shorten("correct the annotation "+c.rule.annotation+" of the ServiceAccount "+Plain(who(e.subject))+
				", and let it ask for "+what(q, missing), maxRemedyBytes)
		case nearNotAsked, nearAbsent:
			if c.rule.requests {
				return e.askObject(q, missing, nearest)
			}
			return e.askWith(c.rule, q, missing, nearest)
		}
	}
	return term.Shorten(e.toAllow(q, missing)+"; no rule does", maxRemedyBytes)
}

func (e *evaluation) toAllow(q question, missing action.Set) string {
	return Administrator + " has to allow " + what(q, missing) + " to " + Plain(who(e.subject))
}

// askWith returns a remedy: an annotation that asks for actions within the ceiling of its rules.
func (e *evaluation) askWith(r *rule, q question, missing action.Set, nearest []candidate) string {
	key := r.annotation
	first, within := e.reachable(q, missing, nearest, func(r *rule) bool { return r.annotation == key })
	item := annotationItem{pattern: pattern.Pattern(q.scope.Name), actions: within.Nameable()}
	// A truncated command could still run, and remove the items that the annotation has now. So the
	// command is complete or left out.
	if command, ok := e.annotate(r, item); ok {
		if whole := first + "run in cluster " + Plain(e.subject.Identity.Cluster) + ": " + command; len(whole) <= maxRemedyBytes {
			return whole
		}
	}
	return term.Shorten(first+"let the annotation "+key+" of the ServiceAccount "+Plain(who(e.subject))+" ask for "+Plain(item.String()), maxRemedyBytes)
}

// reachable returns the missing actions that requests to the chosen rules can get. first names those
// that no rule lets anyone ask for.
func (e *evaluation) reachable(q question, missing action.Set, nearest []candidate, chosen func(*rule) bool) (first string, within action.Set) {
	var ceiling, anyCeiling action.Set
	for _, c := range nearest {
		anyCeiling |= c.ceiling
		if chosen(c.rule) {
			ceiling |= c.ceiling
		}
	}
	if beyond := anyCeiling.Missing(missing); beyond != 0 {
		first = e.toAllow(q, beyond) + "; for the rest, "
	}
	return first, ceiling.Cover(missing)
}

// annotate returns the command that adds items to the annotation that a rule reads, which has no
// fault. Operators run the command in a shell, but clients choose the repository and owners of
// ServiceAccounts write the annotation. So the command holds only parsed values, and their grammars
// allow no quote, backslash or control character.
func (e *evaluation) annotate(r *rule, added ...annotationItem) (string, bool) {
	id := e.subject.Identity
	for _, item := range added {
		if _, err := registryauth.ParseScope("repository:" + item.String()); err != nil {
			return "", false
		}
	}
	if !names.IsSubdomain(id.Kubernetes.ServiceAccount.Name) || !names.IsLabel(id.Kubernetes.Namespace) {
		return "", false
	}
	// An unknown annotation is not overwritten. Pullpass may not see the live annotation, and
	// kubectl refuses to replace one without --overwrite.
	overwrite := ""
	if e.read(r).present {
		overwrite = " --overwrite"
	}
	items := strings.FieldsFunc(e.subject.Annotations[r.annotation], isASCIISpace)
	for _, item := range added {
		items = append(items, item.String())
	}
	value := strings.Join(items, " ")
	if len(value) > MaxAnnotationBytes || len(items) > maxAnnotationItems {
		return "", false // too long: the whole annotation would count for nothing
	}
	return "kubectl annotate serviceaccount " + id.Kubernetes.ServiceAccount.Name + " -n " + id.Kubernetes.Namespace +
		overwrite + " " + r.annotation + "='" + value + "'", true
}

func DenialRemedy(rule string) string {
	return Administrator + " knows why the deny rule " + rule + " is there, and can change it"
}
