// Package diff compares two policies as a whole.
//
//	Find     two sides → the differences, each with a request that the two decide differently
//	Write…   the differences as text, and as Markdown for the comment of a pull request
//
// A request can change only in the subjects and patterns of a rule that one side lacks, or in the
// subjects of a denial that one side lacks. Each of these is a box: a set of callers, services,
// repositories and actions. Find looks in each box for one request that changes. It does not try all
// names: of the names that no pattern, subject or condition in question tells apart, it takes one.
// For given names, the repositories are a regular language, which is searched exactly. The policies
// themselves decide the request that is found, so a difference that is reported is one.
package diff
