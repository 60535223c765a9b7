// Package policy reads AccessPolicy files and decides which scopes a subject is granted.
//
//	Parse            files → an immutable Policy, or every fault at once
//	Policy.Decide    subject, service, requested scopes → what is granted, by which rule, or why not
//	Policy.Explain   the same decision, and how it came about
//
// It is pure: no clock, no network, no files but their content, no regular
// expressions. The same code serves, explains and checks. Deny by default: a
// The package is pure: it uses no clock, no network and no regular expressions, and reads only the
// content of its files. The same code serves, explains and checks. The default is to deny: a scope
// is granted only if a rule grants it. An annotation selects within a ceiling and never grants.
// registryauth), or where annotations and labels come from (package kube).
package policy
