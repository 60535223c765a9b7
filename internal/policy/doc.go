// Package policy reads AccessPolicy files and decides which scopes a subject is granted.
//
//	Parse            files → an immutable Policy, or every fault at once
//	Policy.Decide    subject, service, requested scopes → what is granted, by which rule, or why not
//	Policy.Explain   the same decision, and how it came about
//
// The package is pure: it uses no clock, no network and no regular expressions, and reads only the
// content of its files. The same code serves, explains and checks. The default is to deny: a scope
// is granted only if a rule grants it. An annotation selects within a ceiling and never grants.
//
// It does not own identities (package oidc), the grammar of scopes (package registryauth), or the
// source of annotations and labels (package kube).
package policy
