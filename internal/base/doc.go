// Package base holds packages that know nothing of tokens, registries or Kubernetes.
//
//	file, filewatch  read files that others may replace, and notice changes
//	names, term      names of Kubernetes objects; text for logs and terminals
//	redact           keep credentials out of text
//	strictyaml       YAML in which an unknown or duplicate field is an error
//	lru, fair        caches bounded in bytes; fair turns for tenants
//
// These packages import no package from outside base. A helper that only one other directory needs
// belongs in that directory.
package base
