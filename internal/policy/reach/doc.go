// Package reach answers queries about a policy as a whole: which subjects can act on a repository,
// which repositories a ServiceAccount can reach, and which rules are redundant.
//
// It reads the policy in its source form. Package policy decides on single requests, and this
// package never contradicts it: tests compare the two.
package reach
