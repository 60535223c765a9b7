// Package subjects says who is meant: ServiceAccounts by cluster, namespace, labels,
// name and node, and other identities by what their tokens say. It is the language of
// subjects in policies.
//
//	Parse              a list of subjects → Matches, or faults
//	Asker.MatchAny     is it one of them, and if not, by which field
//	Index.Find         of many lists, those that may mean who asks
//	Match.Cautions     which subjects are more than they seem to be
//
// What is in doubt matches a denial and no rule. It does not own what the subjects
// get (package policy), the grammar of conditions (package condition) or what claims
// mean (package identity).
package subjects
