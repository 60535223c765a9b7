// Package subjects matches callers: ServiceAccounts by cluster, namespace, labels, name and node,
// and other identities by the claims of their tokens. It is the language of subjects in policies.
// Selectors of labels have the forms of Kubernetes: as in a NetworkPolicy, or as text for kubectl -l.
//
//	Parse              a list of subjects → Matches, or faults
//	Asker.MatchAny     is it one of them, and if not, by which field
//	Index.Find         of many lists, those that may match the caller
//	Match.Cautions     which subjects match more callers than they seem to
//
// In doubt, a denial matches and a rule does not. The package does not own the grants of subjects
// (package policy), the grammar of conditions (package condition) or the meaning of claims (package
// identity).
package subjects
