// Package reach asks a policy backwards: who can do something with a repository, what
// can a ServiceAccount reach, and which rules grant nothing that others do not.
//
// It reads the policy as it is written. What one request gets is for package policy
// to say, whose answer this package never contradicts: tests hold them together.
package reach
