// Package policy says who may have what: the language of AccessPolicy files, and
// the decision.
//
//	Parse            files → an immutable Policy, or every fault at once
//	Policy.Decide    subject, service, requested scopes → what is granted, by which rule, or why not
//	Policy.Explain   the same decision, and how it came about
//
// It is pure: no clock, no network, no files but their content, no regular
// expressions. The same code serves, explains and checks. Deny by default: a
// scope that no rule grants is not granted, and an annotation selects within a
// ceiling and never grants.
//
// It does not own identities (package oidc), the grammar of scopes (package
// registryauth), or where annotations and labels come from (package kube).
package policy
